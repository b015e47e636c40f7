-- The trace that a prompt came in, as the header `traceparent` for calls on its behalf.
ALTER TABLE turn ADD COLUMN traceparent TEXT;
