-- Who owns a sandbox, and until when by this database's clock (milliseconds since the Unix epoch). No owner: free.
ALTER TABLE sandbox ADD COLUMN owner BLOB;
ALTER TABLE sandbox ADD COLUMN lease_until INTEGER;

-- What a prompt asked for: a model as {"provider_id", "model_id"}, an agent by name; the turn that it repeats.
ALTER TABLE turn ADD COLUMN model TEXT;
ALTER TABLE turn ADD COLUMN agent TEXT;
ALTER TABLE turn ADD COLUMN retry_of BLOB;
-- How much of its wall clock the turn has used: the time in which nobody was waited for.
ALTER TABLE turn ADD COLUMN active_ms INTEGER NOT NULL DEFAULT 0;

-- Lists show what is not deleted, by id. The runner looks for what is, on every wake, among thousands that are not.
DROP INDEX build_session_sandbox;
CREATE INDEX build_session_listed ON build_session (namespace, sandbox, id) WHERE deleted_at IS NULL;
CREATE INDEX build_session_deleted ON build_session (namespace, sandbox) WHERE deleted_at IS NOT NULL;
