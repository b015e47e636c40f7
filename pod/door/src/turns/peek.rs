//! Finds `messageID` and `noReply` of a prompt in the first bytes of its body as they pass. Pure.
//!
//! Tolerant: what is no JSON finds nothing, and opencode decides what it is. A value counts only at the top level of an
//! object, and the last one counts, as in JavaScript.

/// Bytes that are looked at.
pub(crate) const PREFIX: usize = 64 * 1024;

/// Longest key or value that is kept; a message id has 30 characters.
const KEPT: usize = 256;

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// The caller's id for its prompt.
    pub(crate) message_id: Option<String>,
    /// The prompt is stored, and nothing runs.
    pub(crate) no_reply: bool,
    /// The body is longer than what is looked at, so the rest may say otherwise.
    pub(crate) cut: bool,
}

/// A string that is being read.
#[derive(Debug)]
struct Text {
    /// With its quotes, up to [`KEPT`]; `None` for one that is of no interest, or is too long.
    kept: Option<Vec<u8>>,
    escaped: bool,
}

/// What comes next in the outermost object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expect {
    Key,
    Colon,
    Value,
}

/// Reads the body's beginning, piece by piece.
#[derive(Debug)]
pub(crate) struct Peek {
    read: usize,
    depth: usize,
    text: Option<Text>,
    expect: Expect,
    key: Option<String>,
    literal: Vec<u8>,
    over: bool,
    found: Found,
}

impl Peek {
    pub(crate) fn new() -> Self {
        Self {
            read: 0,
            depth: 0,
            text: None,
            expect: Expect::Key,
            key: None,
            literal: Vec::new(),
            over: false,
            found: Found::default(),
        }
    }

    /// Takes the next piece.
    pub(crate) fn feed(&mut self, piece: &[u8]) {
        for byte in piece {
            if self.is_over() {
                return;
            }
            self.read += 1;
            self.step(*byte);
            self.found.cut = self.read >= PREFIX && !self.over;
        }
    }

    /// Nothing more can be found.
    pub(crate) fn is_over(&self) -> bool {
        self.over || self.read >= PREFIX
    }

    /// What was found so far.
    pub(crate) fn found(&self) -> &Found {
        &self.found
    }

    fn step(&mut self, byte: u8) {
        if let Some(text) = &mut self.text {
            if text.take(byte) {
                let text = self.text.take();
                self.string(text.and_then(|text| text.kept));
            }
            return;
        }
        match byte {
            b' ' | b'\t' | b'\r' | b'\n' => {}
            b'"' if self.depth > 0 => {
                let kept = (self.depth == 1).then(|| vec![b'"']);
                self.text = Some(Text { kept, escaped: false });
            }
            b'{' => self.open(),
            b'[' if self.depth > 0 => self.open(),
            b'}' | b']' if self.depth > 0 => self.close(),
            b':' if self.depth == 1 => self.expect = Expect::Value,
            b',' if self.depth == 1 => self.end_of_member(),
            _ if self.depth == 0 => self.over = true,
            _ if self.depth == 1 && self.literal.len() < KEPT => self.literal.push(byte),
            _ => {}
        }
    }

    fn open(&mut self) {
        // A key that has a structure for its value has no other.
        if self.depth == 1 {
            self.forget();
        }
        self.depth += 1;
    }

    fn close(&mut self) {
        if self.depth == 1 {
            self.end_of_member();
            self.over = true;
        }
        self.depth -= 1;
    }

    fn string(&mut self, raw: Option<Vec<u8>>) {
        if self.depth != 1 {
            return;
        }
        let text = raw.and_then(|raw| serde_json::from_slice::<String>(&raw).ok());
        match self.expect {
            Expect::Key => {
                self.key = text;
                self.expect = Expect::Colon;
            }
            Expect::Value if self.key.as_deref() == Some("messageID") => {
                self.found.message_id = text;
                self.key = None;
            }
            Expect::Value if self.key.as_deref() == Some("noReply") => self.forget(),
            Expect::Colon | Expect::Value => self.key = None,
        }
    }

    fn end_of_member(&mut self) {
        if self.expect == Expect::Value {
            match self.key.as_deref() {
                Some("noReply") => self.found.no_reply = self.literal == b"true",
                Some("messageID") if !self.literal.is_empty() => self.found.message_id = None,
                _ => {}
            }
        }
        self.key = None;
        self.literal.clear();
        self.expect = Expect::Key;
    }

    /// The member's value is none that counts.
    fn forget(&mut self) {
        match self.key.take().as_deref() {
            Some("messageID") => self.found.message_id = None,
            Some("noReply") => self.found.no_reply = false,
            _ => {}
        }
    }
}

impl Text {
    /// Takes the next byte; true at the closing quote.
    fn take(&mut self, byte: u8) -> bool {
        if let Some(kept) = &mut self.kept {
            kept.push(byte);
            if kept.len() > KEPT {
                self.kept = None;
            }
        }
        let closes = byte == b'"' && !self.escaped;
        self.escaped = byte == b'\\' && !self.escaped;
        closes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Map, Value, json};

    use super::*;

    fn peek(body: &[u8], piece: usize) -> Found {
        let mut peek = Peek::new();
        body.chunks(piece.max(1)).for_each(|piece| peek.feed(piece));
        peek.found().clone()
    }

    #[test]
    fn finds_what_is_at_the_top_and_nothing_else() {
        let id = |id: &str| Found { message_id: Some(id.to_owned()), ..Found::default() };
        let note = Found { no_reply: true, ..Found::default() };
        for (body, expected) in [
            (r#"{"messageID":"msg_1","parts":[]}"#, id("msg_1")),
            (r#" { "parts" : [ {"messageID":"msg_0"} ] , "messageID" : "msg_1" }"#, id("msg_1")),
            (r#"{"parts":[{"text":"\"messageID\":\"msg_0\""}]}"#, Found::default()),
            (r#"{"a":{"messageID":"msg_0","noReply":true}}"#, Found::default()),
            (r#"{"messageID":"msg_0","messageID":"msg_1"}"#, id("msg_1")),
            (r#"{"messageID":"msg_0","messageID":null}"#, Found::default()),
            (r#"{"messageID":"msg_0","messageID":{"a":"b"}}"#, Found::default()),
            (r#"{"message\u0049D":"msg\u005f1"}"#, id("msg_1")),
            (r#"{"noReply":true}"#, note.clone()),
            (r#"{"noReply" : true , "x":"messageID"}"#, note.clone()),
            (r#"{"noReply":"true"}"#, Found::default()),
            (r#"{"noReply":true,"noReply":false}"#, Found::default()),
            (r#"{"noReply":[true]}"#, Found::default()),
            (r#"[{"messageID":"msg_0"}]"#, Found::default()),
            (r#""messageID":"msg_0""#, Found::default()),
            (r#"{"x":1,"noReply":true} {"noReply":false}"#, note),
            ("", Found::default()),
            ("\u{feff}{}", Found::default()),
            (r#"{"messageID":"msg_1"#, Found::default()),
        ] {
            for piece in [1, 3, 1000] {
                assert_eq!(peek(body.as_bytes(), piece), expected, "{body} in pieces of {piece}");
            }
        }
    }

    #[test]
    fn looks_no_further_than_the_prefix() {
        let mut body = format!("{{\"a\":\"{}\",", "x".repeat(PREFIX)).into_bytes();
        body.extend(br#""messageID":"msg_1"}"#);
        let cut = Found { cut: true, ..Found::default() };
        assert_eq!(peek(&body, 4096), cut);
        let deep = "[".repeat(PREFIX * 2);
        assert_eq!(peek(format!("{{\"a\":{deep}").as_bytes(), 4096), cut);
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::Bool),
            any::<i64>().prop_map(|number| json!(number)),
            ".{0,20}".prop_map(Value::String),
            Just(json!("messageID")),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            let key =
                prop_oneof![Just("messageID".to_owned()), Just("noReply".to_owned()), "[a-z\"\\\\]{0,5}"];
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
                prop::collection::vec((key, inner), 0..4)
                    .prop_map(|members| { Value::Object(members.into_iter().collect::<Map<_, _>>()) }),
            ]
        })
    }

    proptest! {
        #[test]
        fn never_panics(bytes: Vec<u8>, piece in 1..64_usize) {
            peek(&bytes, piece);
        }

        #[test]
        fn never_panics_on_what_looks_like_json(text in "[{}\\[\\],:\"\\\\a-zA-Z ]{0,80}", piece in 1..16_usize) {
            peek(text.as_bytes(), piece);
        }

        #[test]
        fn agrees_with_a_whole_parser(body in value(), pretty: bool, piece in 1..64_usize) {
            let text = if pretty { serde_json::to_string_pretty(&body) } else { serde_json::to_string(&body) };
            let expected = Found {
                message_id: body.get("messageID").and_then(Value::as_str).map(str::to_owned),
                no_reply: body.get("noReply") == Some(&Value::Bool(true)),
                cut: false,
            };
            prop_assert_eq!(peek(text.unwrap().as_bytes(), piece), expected);
        }
    }
}
