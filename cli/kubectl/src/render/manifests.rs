//! The manifests that are rendered: Sandboxes of a file or one of the cluster, and the templates that they name. Pure.

use berth_api::{Sandbox, SandboxTemplate, merge::merge};
use serde_json::Value;

use crate::{error::PluginError, yaml};

/// The UID of a Sandbox that is not in a cluster: what is made in one has another.
const UID: &str = "00000000-0000-0000-0000-000000000000";

/// Sandboxes and templates.
#[derive(Debug, Clone, Default)]
pub(super) struct Manifests {
    sandboxes: Vec<Sandbox>,
    templates: Vec<SandboxTemplate>,
}

impl Manifests {
    /// One that is in the cluster.
    pub(super) fn of(sandbox: Sandbox) -> Self {
        Self { sandboxes: vec![sandbox], templates: Vec::new() }
    }

    /// Those of a text, in YAML or JSON. Objects of other kinds are left out.
    pub(super) fn read(text: &str) -> Result<Self, String> {
        let mut manifests = Self::default();
        for (index, object) in yaml::read(text)?.into_iter().enumerate() {
            manifests.take(object).map_err(|why| format!("document {}: {why}", index + 1))?;
        }
        if manifests.sandboxes.is_empty() {
            return Err(
                "there is no Sandbox in it (apiVersion: berth.dev/v1alpha1, kind: Sandbox)".to_owned()
            );
        }
        Ok(manifests)
    }

    fn take(&mut self, object: Value) -> Result<(), String> {
        let text = |name: &str| object.get(name).and_then(Value::as_str).unwrap_or_default();
        let (group, kind) = (text("apiVersion").split('/').next().unwrap_or_default(), text("kind"));
        let read = match (group, kind) {
            ("berth.dev", "Sandbox") => serde_json::from_value(object).map(|one| self.sandboxes.push(one)),
            ("berth.dev", "SandboxTemplate") => {
                serde_json::from_value(object).map(|one| self.templates.push(one))
            }
            _ => Ok(()),
        };
        read.map_err(|error| error.to_string())
    }

    /// Gives those that are not in a cluster what they would have there.
    pub(super) fn fill_in(&mut self, namespace: &str) {
        let metadata = self.sandboxes.iter_mut().map(|one| &mut one.metadata);
        for metadata in metadata.chain(self.templates.iter_mut().map(|one| &mut one.metadata)) {
            metadata.namespace.get_or_insert_with(|| namespace.to_owned());
            metadata.uid.get_or_insert_with(|| UID.to_owned());
        }
    }

    /// Templates that are named and are not among the manifests, as namespace and name.
    pub(super) fn missing(&self) -> Vec<(String, String)> {
        let named = self.sandboxes.iter().filter_map(place_of_template);
        named.filter(|place| self.template(place).is_none()).collect()
    }

    /// A template that was found elsewhere.
    pub(super) fn add(&mut self, template: SandboxTemplate) {
        self.templates.push(template);
    }

    fn template(&self, (namespace, name): &(String, String)) -> Option<&SandboxTemplate> {
        let metadata = |template: &&SandboxTemplate| {
            (template.metadata.namespace.as_ref(), template.metadata.name.as_ref())
                == (Some(namespace), Some(name))
        };
        self.templates.iter().find(metadata)
    }

    /// Each as the operator reads it: over its template, if it names one.
    pub(super) fn merged(&self) -> Result<Vec<Sandbox>, PluginError> {
        self.sandboxes.iter().map(|sandbox| self.merge(sandbox)).collect()
    }

    fn merge(&self, sandbox: &Sandbox) -> Result<Sandbox, PluginError> {
        let mut merged = sandbox.clone();
        let Some(place) = place_of_template(sandbox) else { return Ok(merged) };
        let template = self.template(&place).ok_or_else(|| PluginError::Invalid {
            name: sandbox.metadata.name.clone().unwrap_or_default(),
            reason: format!("there is no SandboxTemplate {} in namespace {}", place.1, place.0),
        })?;
        merged.spec.settings = merge(merged.spec.settings, template.spec.settings.clone());
        Ok(merged)
    }
}

/// Namespace and name of the template that a sandbox names.
fn place_of_template(sandbox: &Sandbox) -> Option<(String, String)> {
    let name = sandbox.spec.template_ref.as_ref()?.name.clone();
    Some((sandbox.metadata.namespace.clone()?, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sandboxes_are_found_among_other_objects() {
        let text = "kind: ConfigMap\n---\napiVersion: v1\nkind: List\nitems:\n- apiVersion: berth.dev/v1alpha1\n  kind: Sandbox\n  metadata: { name: one, namespace: own }\n  spec: {}\n---\napiVersion: berth.dev/v1alpha1\nkind: Sandbox\nmetadata: { name: two }\nspec: {}\n";
        let mut manifests = Manifests::read(text).unwrap();
        manifests.fill_in("team");
        let places: Vec<_> =
            manifests.merged().unwrap().into_iter().map(|one| one.metadata.namespace.unwrap()).collect();
        assert_eq!(places, ["own", "team"]);
    }

    #[test]
    fn a_sandbox_is_laid_over_its_template() {
        let text = "apiVersion: berth.dev/v1alpha1\nkind: SandboxTemplate\nmetadata: { name: base }\nspec: { model: a/b, image: i }\n---\napiVersion: berth.dev/v1alpha1\nkind: Sandbox\nmetadata: { name: one }\nspec: { templateRef: { name: base }, model: c/d }\n";
        let mut manifests = Manifests::read(text).unwrap();
        manifests.fill_in("team");
        assert!(manifests.missing().is_empty());
        let settings = &manifests.merged().unwrap()[0].spec.settings;
        assert_eq!((settings.model.as_deref(), settings.image.as_deref()), (Some("c/d"), Some("i")));
        let mut lost =
            Manifests::read(&text.replace("name: base }\nspec: { model", "name: other }\nspec: { model"))
                .unwrap();
        lost.fill_in("team");
        assert_eq!(lost.missing(), [("team".to_owned(), "base".to_owned())]);
        assert!(lost.merged().unwrap_err().to_string().contains("no SandboxTemplate base in namespace team"));
    }

    #[test]
    fn what_is_no_sandbox_is_told_with_its_place() {
        assert!(Manifests::read("kind: ConfigMap\n").unwrap_err().contains("no Sandbox"));
        let bad =
            "kind: ConfigMap\n---\napiVersion: berth.dev/v1alpha1\nkind: Sandbox\nspec: { providers: 7 }\n";
        let why = Manifests::read(bad).unwrap_err();
        assert!(why.starts_with("document 2: ") && why.contains("invalid type"), "{why}");
    }
}
