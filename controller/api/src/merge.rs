//! A sandbox's settings over its template's. Pure.
//!
//! What the one above says stands; of objects and of maps each member is looked at, lists with names are merged by them, and
//! the others either follow each other or the one takes the other's place, as their fields say. What is absent never
//! takes anything away.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::settings::{
    Egress, GitSeed, Network, Opencode, Permissions, PersistentWorkspace, PodOverlay, Port, Provider,
    Resources, Seed, Settings, TurnLimits, UpdateStrategy, Workspace,
};

/// What can be laid over another one of its kind.
trait Merge: Sized {
    /// This one over that one.
    fn over(self, under: Self) -> Self;
}

/// The settings of a sandbox, `over` those of its template.
pub fn merge(over: Settings, under: Settings) -> Settings {
    over.over(under)
}

impl<T: Merge> Merge for Option<T> {
    fn over(self, under: Self) -> Self {
        match (self, under) {
            (Some(over), Some(under)) => Some(over.over(under)),
            (over, under) => over.or(under),
        }
    }
}

impl Merge for Settings {
    fn over(self, under: Self) -> Self {
        let Self {
            image,
            model,
            providers,
            opencode,
            resources,
            workspace,
            files,
            ports,
            network,
            permissions,
            turn_limits,
            expires_after,
            on_delete,
            update_strategy,
            pod,
        } = self;
        Self {
            image: image.or(under.image),
            model: model.or(under.model),
            providers: by_key(providers, under.providers, |provider| provider.name.clone(), Merge::over),
            opencode: opencode.over(under.opencode),
            resources: resources.over(under.resources),
            workspace: workspace.over(under.workspace),
            files: by_key(files, under.files, |file| file.path.clone(), |over, _| over),
            ports: by_key(ports, under.ports, |port| port.name.clone(), Merge::over),
            network: network.over(under.network),
            permissions: permissions.over(under.permissions),
            turn_limits: turn_limits.over(under.turn_limits),
            expires_after: expires_after.or(under.expires_after),
            on_delete: on_delete.or(under.on_delete),
            update_strategy: update_strategy.over(under.update_strategy),
            pod: pod.over(under.pod),
        }
    }
}

impl Merge for Provider {
    fn over(self, under: Self) -> Self {
        let Self { name, api_key_secret_ref, base_url } = self;
        Self {
            name,
            api_key_secret_ref: api_key_secret_ref.or(under.api_key_secret_ref),
            base_url: base_url.or(under.base_url),
        }
    }
}

impl Merge for Opencode {
    fn over(self, under: Self) -> Self {
        let Self { image, config, env, project_config } = self;
        Self {
            image: image.or(under.image),
            config: match (config, under.config) {
                (Some(over), Some(under)) => Some(members(over, under)),
                (over, under) => over.or(under),
            },
            env: by_key(env, under.env, |variable| variable.name.clone(), |over, _| over),
            project_config: project_config.or(under.project_config),
        }
    }
}

impl Merge for Resources {
    fn over(self, under: Self) -> Self {
        let Self { requests, limits } = self;
        Self { requests: map(requests, under.requests), limits: map(limits, under.limits) }
    }
}

impl Merge for Workspace {
    /// The one kind of workspace takes the place of the other.
    fn over(self, under: Self) -> Self {
        let Self { persistent, ephemeral, seed } = self;
        let seed = seed.over(under.seed);
        match (persistent, ephemeral) {
            (None, None) => Self { persistent: under.persistent, ephemeral: under.ephemeral, seed },
            (Some(over), ephemeral) => {
                Self { persistent: Some(over).over(under.persistent), ephemeral, seed }
            }
            (None, Some(mut over)) => {
                over.size_limit = over.size_limit.or_else(|| under.ephemeral?.size_limit);
                Self { persistent: None, ephemeral: Some(over), seed }
            }
        }
    }
}

impl Merge for PersistentWorkspace {
    fn over(self, under: Self) -> Self {
        let Self { size, storage_class_name } = self;
        Self {
            size: size.or(under.size),
            storage_class_name: storage_class_name.or(under.storage_class_name),
        }
    }
}

impl Merge for Seed {
    fn over(self, under: Self) -> Self {
        let Self { git } = self;
        Self { git: git.over(under.git) }
    }
}

impl Merge for GitSeed {
    /// Credentials and branches are of one repository: nothing of it goes over to another one.
    fn over(self, under: Self) -> Self {
        if self.url.is_some() && under.url.is_some() && self.url != under.url {
            return self;
        }
        let Self { url, reference, depth, submodules, lfs, credentials_secret_ref } = self;
        Self {
            url: url.or(under.url),
            reference: reference.or(under.reference),
            depth: depth.or(under.depth),
            submodules: submodules.or(under.submodules),
            lfs: lfs.or(under.lfs),
            credentials_secret_ref: credentials_secret_ref.or(under.credentials_secret_ref),
        }
    }
}

impl Merge for Port {
    fn over(self, under: Self) -> Self {
        let Self { name, port, from } = self;
        Self { name, port, from: if from.is_empty() { under.from } else { from } }
    }
}

impl Merge for Network {
    fn over(self, under: Self) -> Self {
        let Self { egress } = self;
        Self { egress: egress.over(under.egress) }
    }
}

impl Merge for Egress {
    fn over(self, under: Self) -> Self {
        let Self { preset, allow } = self;
        Self { preset: preset.or(under.preset), allow: follow(allow, under.allow) }
    }
}

impl Merge for Permissions {
    fn over(self, under: Self) -> Self {
        let Self { default, rules } = self;
        Self { default: default.or(under.default), rules: follow(rules, under.rules) }
    }
}

impl Merge for TurnLimits {
    fn over(self, under: Self) -> Self {
        let Self { duration, silence, start, steps, answer } = self;
        Self {
            duration: duration.or(under.duration),
            silence: silence.or(under.silence),
            start: start.or(under.start),
            steps: steps.or(under.steps),
            answer: answer.or(under.answer),
        }
    }
}

impl Merge for UpdateStrategy {
    fn over(self, under: Self) -> Self {
        let Self { spec, platform } = self;
        Self { spec: spec.or(under.spec), platform: platform.or(under.platform) }
    }
}

impl Merge for PodOverlay {
    fn over(self, under: Self) -> Self {
        let Self {
            labels,
            annotations,
            node_selector,
            tolerations,
            affinity,
            topology_spread_constraints,
            scheduler_name,
            runtime_class_name,
            priority_class_name,
            service_account_name,
            image_pull_secrets,
            fs_group_change_policy,
            dns_policy,
            dns_config,
            host_aliases,
        } = self;
        Self {
            labels: map(labels, under.labels),
            annotations: map(annotations, under.annotations),
            node_selector: map(node_selector, under.node_selector),
            tolerations: follow(tolerations, under.tolerations),
            affinity: affinity.or(under.affinity),
            topology_spread_constraints: instead(
                topology_spread_constraints,
                under.topology_spread_constraints,
            ),
            scheduler_name: scheduler_name.or(under.scheduler_name),
            runtime_class_name: runtime_class_name.or(under.runtime_class_name),
            priority_class_name: priority_class_name.or(under.priority_class_name),
            service_account_name: service_account_name.or(under.service_account_name),
            image_pull_secrets: by_key(
                image_pull_secrets,
                under.image_pull_secrets,
                |secret| secret.name.clone(),
                |over, _| over,
            ),
            fs_group_change_policy: fs_group_change_policy.or(under.fs_group_change_policy),
            dns_policy: dns_policy.or(under.dns_policy),
            dns_config: dns_config.or(under.dns_config),
            host_aliases: instead(host_aliases, under.host_aliases),
        }
    }
}

/// By the name of each member.
fn map<T>(over: BTreeMap<String, T>, mut under: BTreeMap<String, T>) -> BTreeMap<String, T> {
    under.extend(over);
    under
}

/// What is above comes after, and what is there already does not come again.
fn follow<T: PartialEq>(over: Vec<T>, mut under: Vec<T>) -> Vec<T> {
    under.retain(|element| !over.contains(element));
    under.extend(over);
    under
}

/// The whole list.
fn instead<T>(over: Vec<T>, under: Vec<T>) -> Vec<T> {
    if over.is_empty() { under } else { over }
}

/// By what tells the elements apart: the order is that of what lies below, and what is new comes after it.
fn by_key<T, K: PartialEq>(over: Vec<T>, under: Vec<T>, key: fn(&T) -> K, combine: fn(T, T) -> T) -> Vec<T> {
    let mut over: Vec<Option<T>> = over.into_iter().map(Some).collect();
    let mut merged: Vec<T> = Vec::with_capacity(over.len() + under.len());
    for element in under {
        let same =
            over.iter_mut().find(|other| other.as_ref().is_some_and(|other| key(other) == key(&element)));
        merged.push(match same.and_then(Option::take) {
            Some(other) => combine(other, element),
            None => element,
        });
    }
    merged.extend(over.into_iter().flatten());
    merged
}

/// Of free JSON: objects by their members at every depth, and everything else as it is above, null included.
fn members(over: Map<String, Value>, mut under: Map<String, Value>) -> Map<String, Value> {
    for (name, value) in over {
        let merged = match (value, under.remove(&name)) {
            (Value::Object(over), Some(Value::Object(under))) => Value::Object(members(over, under)),
            (value, _) => value,
        };
        under.insert(name, merged);
    }
    under
}

#[cfg(test)]
mod tests;
