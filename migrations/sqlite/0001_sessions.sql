-- Times are milliseconds since the Unix epoch; ids are UUIDv7 as 16 bytes; JSON is text.

-- What a replica that owns a sandbox knows of its door. One writer: whoever holds the fence.
CREATE TABLE sandbox (
    namespace TEXT NOT NULL,
    name      TEXT NOT NULL,
    fence     INTEGER NOT NULL DEFAULT 0,
    cursor    TEXT,
    boot_id   TEXT,
    PRIMARY KEY (namespace, name)
) STRICT;

CREATE TABLE build_session (
    id                  BLOB NOT NULL PRIMARY KEY,
    namespace           TEXT NOT NULL,
    sandbox             TEXT NOT NULL,
    directory           TEXT NOT NULL,
    title               TEXT,
    title_fixed         INTEGER NOT NULL DEFAULT 0,
    opencode_session_id TEXT,
    translator          TEXT,
    next_seq            INTEGER NOT NULL DEFAULT 1,
    next_ordinal        INTEGER NOT NULL DEFAULT 1,
    created_at          INTEGER NOT NULL,
    updated_at          INTEGER NOT NULL,
    deleted_at          INTEGER
) STRICT;
CREATE INDEX build_session_sandbox ON build_session (namespace, sandbox, id);

CREATE TABLE turn (
    id               BLOB NOT NULL PRIMARY KEY,
    session_id       BLOB NOT NULL REFERENCES build_session (id) ON DELETE CASCADE,
    ordinal          INTEGER NOT NULL,
    state            TEXT NOT NULL CHECK (state IN ('queued', 'running', 'succeeded', 'failed', 'cancelled', 'unknown')),
    prompt           TEXT NOT NULL,
    caller           TEXT NOT NULL,
    idempotency_key  TEXT,
    body_hash        BLOB NOT NULL,
    message_id       TEXT,
    cancel_requested INTEGER NOT NULL DEFAULT 0,
    stop_reason      TEXT,
    error            TEXT,
    usage            TEXT,
    created_at       INTEGER NOT NULL,
    started_at       INTEGER,
    ended_at         INTEGER,
    UNIQUE (session_id, ordinal),
    UNIQUE (session_id, caller, idempotency_key)
) STRICT;
-- The runner looks for open turns on every wake: this index holds nothing else.
CREATE INDEX turn_open ON turn (session_id, ordinal) WHERE state IN ('queued', 'running');

CREATE TABLE session_event (
    session_id      BLOB NOT NULL REFERENCES build_session (id) ON DELETE CASCADE,
    seq             INTEGER NOT NULL,
    turn_id         BLOB,
    kind            TEXT NOT NULL,
    payload         TEXT NOT NULL,
    payload_version INTEGER NOT NULL,
    at              INTEGER NOT NULL,
    PRIMARY KEY (session_id, seq)
) STRICT, WITHOUT ROWID;

-- A permission or a question that waits for a person. An answer is a wish: the owner delivers it.
CREATE TABLE ask (
    session_id  BLOB NOT NULL REFERENCES build_session (id) ON DELETE CASCADE,
    id          TEXT NOT NULL,
    kind        TEXT NOT NULL CHECK (kind IN ('permission', 'question')),
    turn_id     BLOB NOT NULL,
    request     TEXT NOT NULL,
    expires_at  INTEGER NOT NULL,
    answer      TEXT,
    resolved    INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (session_id, id)
) STRICT;
CREATE INDEX ask_open ON ask (session_id) WHERE resolved = 0;

-- What "always" allowed, per session.
CREATE TABLE permission_rule (
    session_id BLOB NOT NULL REFERENCES build_session (id) ON DELETE CASCADE,
    permission TEXT NOT NULL,
    pattern    TEXT NOT NULL,
    PRIMARY KEY (session_id, permission, pattern)
) STRICT, WITHOUT ROWID;
