//! An apiserver for tests: it answers as it is told, and remembers what it was asked.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex, PoisonError},
};

use http::{Request, Response};
use http_body_util::BodyExt;
use kube::{
    Client,
    client::Body,
    runtime::events::{Recorder, Reporter},
};
use serde_json::{Value, json};

pub(crate) use crate::reconcile::Context;
use crate::{build::sample, metrics::Metrics, moving::Cordons, namespaces::Namespaces};

/// One call.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) body: Value,
}

/// What it was asked.
#[derive(Debug, Clone, Default)]
pub(crate) struct Calls(Arc<Mutex<Vec<Call>>>);

impl Calls {
    /// Of this method, to a path that ends so.
    pub(crate) fn of(&self, method: &str, ending: &str) -> Vec<Call> {
        let calls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        calls.iter().filter(|call| call.method == method && call.path.ends_with(ending)).cloned().collect()
    }
}

/// A status as the cluster refuses with it.
pub(crate) fn refused(code: u16, message: &str) -> (u16, Value) {
    let reason = match code {
        404 => "NotFound",
        409 => "Conflict",
        _ => "InternalError",
    };
    let status = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
        "message": message, "reason": reason });
    (code, status)
}

/// Everything that a pass needs, with a cluster that answers each call so.
pub(crate) fn context(answer: impl Fn(&Call) -> (u16, Value) + Send + Sync + 'static) -> (Context, Calls) {
    let (calls, answer) = (Calls::default(), Arc::new(answer));
    let heard = calls.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let (heard, answer) = (heard.clone(), Arc::clone(&answer));
        async move {
            let (method, path) = (request.method().to_string(), request.uri().path().to_owned());
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let call = Call { method, path, body: serde_json::from_slice(&body).unwrap_or_default() };
            let (status, value) = answer(&call);
            heard.0.lock().unwrap_or_else(PoisonError::into_inner).push(call);
            let body = Body::from(value.to_string().into_bytes());
            Ok::<_, Infallible>(Response::builder().status(status).body(body).unwrap())
        }
    });
    let client = Client::new(service, "default");
    let context = Context {
        recorder: Recorder::new(client.clone(), Reporter::from("berth-operator")),
        client,
        platform: Arc::new(sample::platform()),
        metrics: Metrics::default(),
        namespaces: Namespaces::default(),
        memory: Arc::default(),
        cordons: Cordons::default(),
    };
    (context, calls)
}
