//! Why one pass over a sandbox came to nothing. Pure.

/// A pass that is to be made again, later.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReconcileError {
    /// A call to the cluster failed.
    #[error("cannot {what}")]
    Cluster {
        /// What was asked for.
        what: &'static str,
        /// Why it failed.
        source: Box<kube::Error>,
    },
    /// The object has no name, namespace or UID.
    #[error("the object has no {0}")]
    Incomplete(&'static str),
}

/// Names what was asked for.
pub(crate) fn cannot(what: &'static str) -> impl FnOnce(kube::Error) -> ReconcileError {
    move |source| ReconcileError::Cluster { what, source: Box::new(source) }
}

impl ReconcileError {
    /// What was to be written had been changed by somebody else.
    pub(crate) fn is_conflict(&self) -> bool {
        match self {
            Self::Cluster { source, .. } => {
                matches!(&**source, kube::Error::Api(status) if status.code == 409)
            }
            Self::Incomplete(_) => false,
        }
    }
}
