-- Events of opencode name its own session: ours is found by that also when it is idle.
CREATE INDEX build_session_root ON build_session (namespace, sandbox, opencode_session_id);
