//! `kubectl berth doctor`: looks for what stands in the way of Berth in a cluster, and says what to do. Changes nothing. IO.
//!
//! - [`installation`]: the kinds, the operator and the server.
//! - [`surroundings`]: the cluster itself: its version, storage, network rules.
//! - [`caller`]: what whoever asks may do.
//! - [`state`]: the sandboxes.
//! - [`bundle`]: the archive, without secrets by [`hidden`].

use std::time::Duration;

use berth_command::{
    archive,
    check::{self, Check, Verdict},
    printer::{Printer, Shape, Tone},
};

use crate::{
    args::{ClusterArgs, DoctorArgs, DoctorFormat},
    cluster::Cluster,
    error::{Exit, PluginError, error_chain},
    sandboxes::{self, Found},
};

mod bundle;
mod caller;
mod hidden;
mod installation;
mod state;
mod surroundings;

/// Bound on all of the archive's content: a cluster in trouble answers slowly.
const BUNDLE: Duration = Duration::from_mins(5);

/// What is looked at.
#[derive(Debug, Clone)]
struct Scope {
    cluster: Cluster,
    all_namespaces: bool,
    /// Namespace of Berth's own programs.
    control: String,
}

/// Looks everywhere, says what was found, and writes the archive where one is wanted.
pub(crate) async fn doctor(
    cluster: &ClusterArgs,
    args: DoctorArgs,
    shape: Shape,
) -> Result<Exit, PluginError> {
    let DoctorArgs { all_namespaces, bundle, output, control_namespace: control } = args;
    let scope = Scope { cluster: Cluster::connect(cluster).await?, all_namespaces, control };
    let (checks, found) = look(&scope).await?;
    let mut printer = Printer::standard(shape);
    let json = output == Some(DoctorFormat::Json);
    if json {
        printer.raw_line(&check::json(&checks).to_string()).map_err(PluginError::Output)?;
    } else {
        check::show(&checks, &mut printer).map_err(PluginError::Output)?;
    }
    if let Some(path) = bundle {
        let collected = tokio::time::timeout(BUNDLE, bundle::collect(&scope, &checks, &found)).await;
        let late =
            |_| PluginError::Late { action: "collect the archive".to_owned(), seconds: BUNDLE.as_secs() };
        let members = collected.map_err(late)?;
        archive::write(&path, &members)
            .map_err(|source| PluginError::Write { path: path.clone(), source })?;
        let note = format!("{} is written; look into it before you share it", path.display());
        let said = if json { printer.aside(&note) } else { printer.line(Tone::Note, &note) };
        said.map_err(PluginError::Output)?;
    }
    printer.flush().map_err(PluginError::Output)?;
    let bad = checks.iter().any(|check| check.verdict == Verdict::Bad);
    Ok(if bad { Exit::Failed } else { Exit::Succeeded })
}

/// All findings, and the sandboxes. Only a cluster that does not answer ends it.
async fn look(scope: &Scope) -> Result<(Vec<Check>, Vec<Found>), PluginError> {
    let mut checks = vec![surroundings::version(scope).await?];
    checks.extend(installation::checks(scope).await);
    checks.extend(caller::checks(scope).await);
    let found = match sandboxes::list(&scope.cluster, scope.all_namespaces, None).await {
        Ok(found) => found,
        Err(PluginError::NotInstalled) => Vec::new(),
        Err(error) => {
            checks.push(unread("sandboxes", &error));
            Vec::new()
        }
    };
    checks.extend(surroundings::checks(scope, &found).await);
    checks.extend(state::checks(&found));
    Ok((checks, found))
}

/// What could not be looked at.
fn unread(name: &'static str, error: &PluginError) -> Check {
    let fix = if error.is_forbidden() {
        "you lack the right to look at it: that alone is no fault".to_owned()
    } else {
        error.hint().unwrap_or_default()
    };
    Check::note(name, error_chain(error), fix)
}
