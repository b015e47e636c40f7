//! Payloads of other versions: those of older ones are brought to the form of this one, step by step; those of newer ones
//! are not guessed at. Pure.

use serde_json::{Map, Value, json};

use super::{PART_META, PAYLOAD_VERSION};

/// Kind of what stands in the place of an entry that cannot be read: see [`super::Unreadable`].
pub(super) const UNREADABLE: &str = "unreadable";

/// Brings a stored payload to the form of [`PAYLOAD_VERSION`]. One of a newer version becomes an `unreadable` entry.
pub fn to_current(kind: String, version: i64, payload: Value) -> (String, Value) {
    match version {
        PAYLOAD_VERSION => (kind, payload),
        0 => from_0(kind, payload),
        _ => unreadable(&kind, version),
    }
}

/// What stands in the place of an entry that cannot be read.
pub fn unreadable(kind: &str, version: i64) -> (String, Value) {
    (UNREADABLE.to_owned(), json!({ "kind": kind, "version": version }))
}

/// Version 0, which no release wrote, told a chunk's part and offset beside its content, where version 1 has them in
/// `_meta`, as ACP wants it.
fn from_0(kind: String, mut payload: Value) -> (String, Value) {
    if let Value::Object(chunk) = &mut payload
        && let (Some(id), Some(offset)) = (chunk.remove("partId"), chunk.remove("offset"))
    {
        let mut meta = Map::new();
        meta.insert(PART_META.to_owned(), json!({ "id": id, "offset": offset }));
        chunk.insert("_meta".to_owned(), Value::Object(meta));
    }
    (kind, payload)
}

#[cfg(test)]
mod tests {
    use super::{
        super::{EventPayload, Unreadable, Voice},
        *,
    };

    fn read(kind: &str, version: i64, payload: Value) -> EventPayload {
        let (kind, payload) = to_current(kind.to_owned(), version, payload);
        EventPayload::from_parts(&kind, payload)
    }

    #[test]
    fn a_payload_of_version_0_reads_as_one_of_today() {
        let old = json!({
            "sessionUpdate": "agent_message_chunk", "content": { "type": "text", "text": "hi" }, "partId": "prt_1",
            "offset": 7,
        });
        assert_eq!(
            read("agent_message_chunk", 0, old),
            EventPayload::chunk(Voice::Message, "prt_1", 7, "hi")
        );
        let same = json!({ "part_id": "prt_1" });
        assert_eq!(read("part_voided", 0, same.clone()), read("part_voided", 1, same));
        for odd in [json!(null), json!([1]), json!({ "partId": 1 }), json!("x")] {
            read("agent_message_chunk", 0, odd);
        }
    }

    #[test]
    fn a_payload_of_a_newer_version_is_not_guessed_at() {
        let expected = Unreadable { kind: "turn_ended".to_owned(), version: PAYLOAD_VERSION + 1 };
        let newer = read("turn_ended", PAYLOAD_VERSION + 1, json!({ "state": "succeeded" }));
        assert_eq!(newer, EventPayload::Unreadable(expected));
    }
}
