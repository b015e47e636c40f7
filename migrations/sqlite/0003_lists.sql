-- The title in small letters, for search: SQLite's own lower() knows ASCII only.
ALTER TABLE build_session ADD COLUMN title_folded TEXT;
UPDATE build_session SET title_folded = lower(title);

-- Where in the log a turn's events are, from the one that says that it started, so that a page of history reads no
-- other part of it. The last one is not known while the turn is open.
ALTER TABLE turn ADD COLUMN first_seq INTEGER;
ALTER TABLE turn ADD COLUMN last_seq INTEGER;
UPDATE turn SET
    first_seq = (SELECT min(seq) FROM session_event e WHERE e.session_id = turn.session_id AND e.turn_id = turn.id),
    last_seq = (SELECT max(seq) FROM session_event e WHERE e.session_id = turn.session_id AND e.turn_id = turn.id)
    WHERE started_at IS NOT NULL;
UPDATE turn SET last_seq = NULL WHERE state IN ('queued', 'running');

-- What was removed from opencode's session later: 1 some of the agent's messages, 2 the prompt.
ALTER TABLE turn ADD COLUMN removed INTEGER NOT NULL DEFAULT 0;

-- What data: URLs of a prompt held, by the part's position. The prompt itself says where to find it.
CREATE TABLE prompt_file (
    turn_id BLOB NOT NULL REFERENCES turn (id) ON DELETE CASCADE,
    part    INTEGER NOT NULL,
    content BLOB NOT NULL,
    PRIMARY KEY (turn_id, part)
) STRICT;
