//! The turn table: what runs in every session of one opencode, by the requests and events that the door sees. Pure.
//!
//! It asks for confirmations and aborts through [`Out`], and never acts itself.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

mod views;

pub(crate) use views::{Idleness, LiveDirectory};

use super::{
    peek::Found,
    seen::Seen,
    session::{Evidence, Plan, Session},
    spoilt::{Spoil, Spoilt},
    turn::{Action, Admission, Now, Out, Ticket},
};

/// Sessions that are remembered. Beyond it those are forgotten in which nothing runs, the longest unheard first.
const SESSIONS: usize = 4096;

/// Directories whose last use is remembered.
const DIRECTORIES: usize = 4096;

/// A session in which opencode works, as it says itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Working {
    pub(crate) session: String,
    pub(crate) directory: String,
    /// The session that it works for, if it is known.
    pub(crate) parent: Option<String>,
}

/// The table.
#[derive(Debug)]
pub(crate) struct Table {
    start_bound: Duration,
    boot_id: String,
    /// What runs is known: all of the run of opencode was heard, or it was asked.
    known: bool,
    restarted: bool,
    sessions: HashMap<String, Session>,
    active: BTreeSet<String>,
    directories: HashMap<String, Duration>,
    spoilt: Spoilt,
    next_ticket: u64,
    /// Events and requests so far.
    count: u64,
    /// That number when the hearing last began or ended.
    since: u64,
    /// Sessions that were forgotten since this was taken.
    pub(crate) forgotten: u64,
}

impl Table {
    pub(crate) fn new(start_bound: Duration) -> Self {
        Self {
            start_bound,
            boot_id: String::new(),
            known: false,
            restarted: false,
            sessions: HashMap::new(),
            active: BTreeSet::new(),
            directories: HashMap::new(),
            spoilt: Spoilt::default(),
            next_ticket: 0,
            count: 0,
            since: 0,
            forgotten: 0,
        }
    }

    // Runs of opencode.

    /// A run of opencode is heard from now on; `whole` when it is from its beginning. When it was heard before, events
    /// were missed.
    pub(crate) fn hears(&mut self, boot_id: &str, whole: bool, now: Now, out: &mut Out) {
        if self.boot_id == boot_id {
            self.known = false;
            self.sessions.values_mut().for_each(|session| session.missed(now));
        } else {
            self.end_run(out);
            boot_id.clone_into(&mut self.boot_id);
            self.known = whole;
        }
        self.begin_count();
        if !self.known {
            out.actions.push(Action::Seed { boot_id: boot_id.to_owned() });
        }
    }

    /// The run that is heard; empty before the first.
    pub(crate) fn boot_id(&self) -> &str {
        &self.boot_id
    }

    /// That run is over, or, with an empty id, none was there; nothing when another one is heard.
    pub(crate) fn exited(&mut self, boot_id: &str, out: &mut Out) {
        if self.boot_id == boot_id {
            self.end_run(out);
        }
    }

    fn end_run(&mut self, out: &mut Out) {
        self.sessions.values_mut().for_each(|session| session.exited(out));
        self.active.clear();
        self.directories.clear();
        self.spoilt.clear();
        (self.known, self.restarted) = (true, false);
        self.boot_id.clear();
        self.begin_count();
    }

    /// What was asked before this is older than what is known now.
    fn begin_count(&mut self) {
        self.count += 1;
        self.since = self.count;
    }

    /// Events so far: what opencode is asked after this is newer than them.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// What opencode said when it was asked what runs, after event `count`. Sessions that were heard of since then are
    /// known better. Something may have ended unheard; that is confirmed session by session. Nothing when it was asked
    /// of another run, or before events were missed: it is asked again then.
    pub(crate) fn seed(&mut self, working: &[Working], count: u64, now: Now, out: &mut Out) {
        if count < self.since {
            return;
        }
        self.known = true;
        for Working { session: id, directory, parent } in working {
            let heard = self.sessions.get(id).is_some_and(|session| session.touched > count);
            self.with(id, directory, now, out, |session, out| {
                if session.parent.is_none() {
                    session.parent.clone_from(parent);
                }
                if !heard {
                    session.busy(now, out);
                }
                if session.busy {
                    session.notice(None, now, out);
                }
            });
        }
    }

    // Requests.

    /// A prompt is about to be passed to this run of opencode. `None` when it is not the run that is heard, which then
    /// is over, and `Some(Err)` when the session has too many turns.
    pub(crate) fn admit(
        &mut self,
        boot_id: &str,
        admission: &Admission,
        now: Now,
        out: &mut Out,
    ) -> Option<Result<Ticket, TooMany>> {
        if self.boot_id != boot_id {
            return None;
        }
        self.next_ticket += 1;
        let ticket = Ticket { session: admission.session.as_str().into(), number: self.next_ticket };
        let admitted = self.with(&admission.session, &admission.directory, now, out, |session, _| {
            session.admit(admission, ticket.number, now)
        });
        Some(if admitted { Ok(ticket) } else { Err(TooMany) })
    }

    pub(crate) fn learned(&mut self, ticket: &Ticket, found: &Found, now: Now, out: &mut Out) {
        self.with_ticket(ticket, now, out, |session, out| session.learned(ticket.number, found, out));
    }

    pub(crate) fn accepted(&mut self, ticket: &Ticket, now: Now, out: &mut Out) {
        self.with_ticket(ticket, now, out, |session, out| session.accepted(ticket.number, now, out));
    }

    pub(crate) fn answered(&mut self, ticket: &Ticket, now: Now, out: &mut Out) {
        self.with_ticket(ticket, now, out, |session, out| session.answered(ticket.number, now, out));
    }

    pub(crate) fn refused(&mut self, ticket: &Ticket, now: Now, out: &mut Out) {
        self.with_ticket(ticket, now, out, |session, out| session.refused(ticket.number, out));
    }

    pub(crate) fn abort(&mut self, session: &str, directory: &str, now: Now, out: &mut Out) -> Plan {
        self.with(session, directory, now, out, |session, _| session.abort())
    }

    pub(crate) fn abort_returned(&mut self, session: &str, now: Now, out: &mut Out) {
        self.with_known(session, now, out, |session, _| session.abort_returned(now));
    }

    /// See [`Session::held`].
    pub(crate) fn held(&self, session: &str, tickets: &[u64]) -> bool {
        self.sessions.get(session).is_none_or(|session| session.held(tickets))
    }

    // Events.

    /// Takes an event of the instance of `directory`.
    pub(crate) fn observe(&mut self, directory: Option<&str>, seen: &Seen, now: Now, out: &mut Out) {
        if let Seen::Disposed { directory: named } = seen {
            self.disposed(named.as_deref().or(directory), now, out);
            return;
        }
        let Some(id) = seen.session() else { return };
        let directory = directory.unwrap_or_default();
        self.with(id, "", now, out, |session, out| {
            if !directory.is_empty() && session.directory != directory {
                directory.clone_into(&mut session.directory);
            }
            match seen {
                Seen::Session { parent, .. } => session.parent.clone_from(parent),
                Seen::Deleted { .. } => session.deleted(),
                Seen::User { message, created, .. } => session.user(message, *created, now, out),
                Seen::Assistant { message, parent, completed, aborted, .. } => {
                    session.assistant(message, parent.as_deref(), *completed, now, out);
                    if *aborted {
                        session.answer_aborted(parent.as_deref());
                    }
                }
                Seen::Busy { .. } => session.busy(now, out),
                Seen::Idle { .. } => session.idle(now),
                Seen::Error { .. } => session.error(now),
                Seen::Disposed { .. } => {}
            }
        });
    }

    fn disposed(&mut self, directory: Option<&str>, now: Now, out: &mut Out) {
        let Some(directory) = directory else { return };
        let active: Vec<String> = self.active.iter().cloned().collect();
        for id in active {
            if self.sessions.get(&id).is_some_and(|session| session.directory == directory) {
                self.with_known(&id, now, out, |session, out| session.disposed(now, out));
            }
        }
        self.directories.remove(directory);
        self.spoilt.disposed(directory);
    }

    // Time.

    /// When [`Table::tick`] has something to do.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        let active = self.active.iter().filter_map(|id| self.sessions.get(id));
        active.filter_map(|session| session.deadline(self.start_bound)).min()
    }

    pub(crate) fn tick(&mut self, now: Now, out: &mut Out) {
        for id in &self.active {
            if let Some(session) = self.sessions.get_mut(id) {
                session.tick(now, self.start_bound, out);
            }
        }
    }

    /// The answer to [`Action::Confirm`].
    pub(crate) fn confirmed(&mut self, session: &str, evidence: &Evidence, now: Now, out: &mut Out) {
        let start_bound = self.start_bound;
        self.with_known(session, now, out, |session, out| session.confirmed(evidence, now, start_bound, out));
        if std::mem::take(&mut out.restart) && !std::mem::replace(&mut self.restarted, true) {
            out.actions.push(Action::Restart { boot_id: self.boot_id.clone() });
        }
    }

    // Directories.

    pub(crate) fn spoil(&self, directory: &str) -> Option<Spoil> {
        self.spoilt.get(directory)
    }

    pub(crate) fn forgive(&mut self, directory: &str) {
        self.spoilt.forgive(directory);
    }

    // What every change goes through.

    /// Changes a session, which is made when it is not known.
    fn with<T>(
        &mut self,
        id: &str,
        directory: &str,
        now: Now,
        out: &mut Out,
        change: impl FnOnce(&mut Session, &mut Out) -> T,
    ) -> T {
        self.count += 1;
        let session = self.sessions.entry(id.to_owned()).or_insert_with(|| Session::new(id, directory));
        session.touched = self.count;
        let result = change(session, out);
        let (directory, parent) = (session.directory.clone(), session.parent.clone());
        self.spoilt.note(&directory, std::mem::take(&mut session.signs));
        self.settle(id, out);
        self.use_directory(directory, now);
        let mut ancestor = parent;
        // The depth of subagents is small; a loop would be opencode's mistake.
        for _ in 0..16 {
            let Some(id) = ancestor else { break };
            self.settle(&id, out);
            ancestor = self.sessions.get(&id).and_then(|session| session.parent.clone());
        }
        self.forget();
        result
    }

    fn with_known(&mut self, id: &str, now: Now, out: &mut Out, change: impl FnOnce(&mut Session, &mut Out)) {
        if self.sessions.contains_key(id) {
            self.with(id, "", now, out, change);
        }
    }

    fn with_ticket(
        &mut self,
        ticket: &Ticket,
        now: Now,
        out: &mut Out,
        change: impl FnOnce(&mut Session, &mut Out),
    ) {
        self.with_known(&ticket.session, now, out, change);
    }

    /// Ends what is over in a session, and keeps it among the active ones or not.
    fn settle(&mut self, id: &str, out: &mut Out) {
        let children_work = self.descendant_works(id);
        let Some(session) = self.sessions.get_mut(id) else { return };
        session.settle(children_work, out);
        if session.is_active() {
            self.active.insert(id.to_owned());
        } else {
            self.active.remove(id);
        }
    }

    /// A subagent of the session, at any depth, works.
    fn descendant_works(&self, id: &str) -> bool {
        let working = self.active.iter().filter_map(|active| self.sessions.get(active));
        let mut working = working.filter(|session| session.busy && session.parent.is_some());
        working.any(|session| {
            let mut ancestor = session.parent.as_deref();
            for _ in 0..16 {
                match ancestor {
                    Some(ancestor) if ancestor == id => return true,
                    Some(other) => {
                        ancestor = self.sessions.get(other).and_then(|known| known.parent.as_deref());
                    }
                    None => return false,
                }
            }
            false
        })
    }

    fn use_directory(&mut self, directory: String, now: Now) {
        if !directory.is_empty()
            && (self.directories.len() < DIRECTORIES || self.directories.contains_key(&directory))
        {
            self.directories.insert(directory, now.elapsed);
        }
    }

    fn forget(&mut self) {
        if self.sessions.len() <= SESSIONS {
            return;
        }
        // A quarter at once, so that it is seldom done.
        let mut idle: Vec<(u64, String)> = self
            .sessions
            .iter()
            .filter(|(_, session)| !session.is_active())
            .map(|(id, session)| (session.touched, id.clone()))
            .collect();
        idle.sort_unstable();
        for (_, id) in idle.into_iter().take(SESSIONS / 4) {
            self.sessions.remove(&id);
            self.forgotten += 1;
        }
    }
}

/// A session has too many turns that have not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooMany;
