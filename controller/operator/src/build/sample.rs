//! A manifest and a platform for tests. Pure.

#![expect(clippy::needless_pass_by_value, reason = "tests write values where they are used")]

use berth_api::Sandbox;
use serde_json::{Value, json};

use crate::platform::{Network, Platform};

/// UID of the sandbox.
pub(crate) const UID: &str = "1b0f3b1e-0000-4000-8000-000000000001";

/// A sandbox `one` in `team`, with this specification.
pub(crate) fn sandbox(spec: Value) -> Sandbox {
    serde_json::from_value(json!({
        "apiVersion": "berth.dev/v1alpha1",
        "kind": "Sandbox",
        "metadata": { "name": "one", "namespace": "team", "uid": UID, "generation": 3 },
        "spec": spec,
    }))
    .unwrap()
}

/// A platform.
pub(crate) fn platform() -> Platform {
    Platform {
        sidecar_image: "berth-sidecar:1".to_owned(),
        sandbox_image: "berth-sandbox:1".to_owned(),
        image_pull_policy: None,
        network: Network { control_namespace: "berth-system".to_owned(), ..Network::default() },
    }
}
