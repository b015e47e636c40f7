//! The methods of [`Store`](super::Store) as a list, for stores that stand before another one. Pure.

/// Calls the macro `$make` with a line for each method of the trait that waits and may fail, but for `commit`, with which
/// each of them does something of its own. `$output` is what it gives when it does not fail. The types are those in scope
/// where this is used.
macro_rules! store_methods {
    ($make:ident) => {
        $make! {
            async fn create_session(new: NewSession) -> Session;
            async fn session(id: Uuid) -> Option<Session>;
            async fn has_session(id: Uuid) -> bool;
            async fn session_of_root(sandbox: &SandboxKey, root: &str) -> Option<Uuid>;
            async fn list_sessions(query: &SessionQuery) -> Vec<Session>;
            async fn rename_session(id: Uuid, title: &str) -> Option<Session>;
            async fn request_delete(id: Uuid) -> bool;
            async fn enqueue_turn(new: NewTurn, queue_limit: i64) -> Enqueued;
            async fn turn(id: Uuid) -> Option<Turn>;
            async fn turn_row(id: Uuid) -> Option<HistoryRow>;
            async fn list_turns(query: &TurnQuery) -> Vec<HistoryRow>;
            async fn retry_turn(retry: Retry, queue_limit: i64) -> Retried;
            async fn load_prompt(turn_id: Uuid) -> Option<Vec<PromptPart>>;
            async fn prompt_file(turn_id: Uuid, part: usize) -> Option<PromptFile>;
            async fn count_open_turns() -> (i64, i64);
            async fn sandboxes_with_work() -> Vec<SandboxKey>;
            async fn request_cancel(session_id: Uuid, which: Cancel) -> Vec<Uuid>;
            async fn answer_ask(session_id: Uuid, id: &str, answer: Answer) -> Answered;
            async fn read_log(session_id: Uuid, after: i64, bounds: LogBounds) -> LogPage;
            async fn acquire(sandbox: &SandboxKey, owner: Uuid, lease: Duration) -> Acquired;
            async fn renew(sandbox: &SandboxKey, fence: i64, lease: Duration) -> ();
            async fn release(sandbox: &SandboxKey, fence: i64) -> ();
            async fn load_work(sandbox: &SandboxKey) -> Vec<SessionWork>;
            async fn delete_session(sandbox: &SandboxKey, fence: i64, id: Uuid) -> ();
        }
    };
}

pub(crate) use store_methods;
