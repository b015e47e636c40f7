//! Text to [`Script`]. Pure; never panics.

use super::{
    Fault, MAX_OPERATIONS, MAX_PAUSE_MS, MAX_STEPS, MAX_WORDS, Op, Script, ScriptError, Status, Words,
};

/// Longest quotation of a faulty operation, in characters.
const QUOTED: usize = 80;

pub(super) fn parse(source: &str) -> Result<Script, ScriptError> {
    let steps: Vec<&str> = source.split(" >> ").collect();
    if steps.len() > MAX_STEPS {
        return Err(ScriptError::TooManySteps { found: steps.len() });
    }
    let steps = steps
        .iter()
        .enumerate()
        .map(|(index, step)| parse_step(index + 1, step))
        .collect::<Result<_, _>>()?;
    Ok(Script { steps })
}

fn parse_step(step: usize, source: &str) -> Result<Vec<Op>, ScriptError> {
    let written: Vec<&str> = source.split(" | ").map(str::trim).collect();
    if written.len() > MAX_OPERATIONS {
        return Err(ScriptError::TooManyOperations { step, found: written.len() });
    }
    let mut ops = Vec::with_capacity(written.len());
    for (index, text) in written.into_iter().enumerate() {
        let op = parse_op(text).and_then(|op| placed(op, &ops)).map_err(|fault| ScriptError::Operation {
            step,
            operation: index + 1,
            text: text.chars().take(QUOTED).collect(),
            fault,
        })?;
        ops.push(op);
    }
    Ok(ops)
}

/// Refuses an operation that may not stand after `before`.
fn placed(op: Op, before: &[Op]) -> Result<Op, Fault> {
    match (&op, before) {
        (Op::Status(_) | Op::HoldHeaders, []) | (Op::HoldHeaders, [Op::Status(_)]) => Ok(op),
        (Op::Status(_) | Op::HoldHeaders, _) => Err(Fault::NotFirst),
        _ => Ok(op),
    }
}

fn parse_op(text: &str) -> Result<Op, Fault> {
    let (name, rest) = text.split_once(':').unwrap_or((text, ""));
    match name {
        "" => Err(Fault::Empty),
        "text" => parse_words(rest).map(Op::Text),
        "say" => Ok(Op::Say(rest.to_owned())),
        "think" => parse_words(rest).map(Op::Think),
        "reason" => Ok(Op::Reason(rest.to_owned())),
        "tool" => parse_tool(rest),
        "sleep" => parse_number("sleep", rest, 0, MAX_PAUSE_MS).map(Op::Sleep),
        "status" => parse_status(rest).map(Op::Status),
        "dropn" if rest.is_empty() => Ok(Op::DropFirst(1)),
        "dropn" => parse_count("dropn", rest, 1, u32::MAX).map(Op::DropFirst),
        "hang" => bare(rest, Op::Hang),
        "hangpre" => bare(rest, Op::HoldHeaders),
        "drop" => bare(rest, Op::Drop),
        "eof" => bare(rest, Op::Eof),
        "badjson" => bare(rest, Op::BadJson),
        "length" => bare(rest, Op::Length),
        _ => Err(Fault::UnknownOperation),
    }
}

fn bare(rest: &str, op: Op) -> Result<Op, Fault> {
    if rest.is_empty() { Ok(op) } else { Err(Fault::Unexpected) }
}

fn parse_tool(rest: &str) -> Result<Op, Fault> {
    match rest.split_once(':') {
        Some((name, arguments)) if !name.trim().is_empty() => {
            Ok(Op::Tool { name: name.trim().to_owned(), arguments: arguments.to_owned() })
        }
        _ => Err(Fault::ToolName),
    }
}

fn parse_words(rest: &str) -> Result<Words, Fault> {
    let mut words = Words::default();
    for parameter in parameters(rest) {
        match parameter {
            ("n", value) => words.count = parse_count("n", value, 0, MAX_WORDS)?,
            ("d", value) => words.delay_ms = parse_number("d", value, 0, MAX_PAUSE_MS)?,
            ("w", value) => value.clone_into(&mut words.word),
            (name, _) => return Err(Fault::UnknownParameter(name.to_owned())),
        }
    }
    Ok(words)
}

fn parse_status(rest: &str) -> Result<Status, Fault> {
    let (code, rest) = rest.split_once(',').unwrap_or((rest, ""));
    let code = parse_number("the status", code.trim(), 400, 599)?;
    let mut status = Status { code: u16::try_from(code).unwrap_or(u16::MAX), times: None, retry_after: None };
    for parameter in parameters(rest) {
        match parameter {
            ("times", value) => status.times = Some(parse_count("times", value, 1, u32::MAX)?),
            ("ra", value) => status.retry_after = Some(parse_number("ra", value, 0, u64::from(u32::MAX))?),
            (name, _) => return Err(Fault::UnknownParameter(name.to_owned())),
        }
    }
    Ok(status)
}

/// `a=1,b=2` as pairs; a part without `=` is a name without a value. Empty parts are skipped.
fn parameters(rest: &str) -> impl Iterator<Item = (&str, &str)> {
    let parts = rest.split(',').filter(|part| !part.trim().is_empty());
    parts
        .map(|part| part.split_once('=').unwrap_or((part, "")))
        .map(|(name, value)| (name.trim(), value.trim()))
}

fn parse_number(name: &'static str, text: &str, min: u64, max: u64) -> Result<u64, Fault> {
    match text.parse() {
        Ok(number) if (min..=max).contains(&number) => Ok(number),
        _ => Err(Fault::Number { name, min, max }),
    }
}

fn parse_count(name: &'static str, text: &str, min: u32, max: u32) -> Result<u32, Fault> {
    parse_number(name, text, min.into(), max.into()).and_then(|number| {
        u32::try_from(number).map_err(|_| Fault::Number { name, min: min.into(), max: max.into() })
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fault(source: &str) -> String {
        source.parse::<Script>().expect_err(source).explain()
    }

    #[test]
    fn every_operation_parses() {
        let source = r#"text | text:n=3,d=20,w=tick | say:a: b, c | think:n=2 | reason: so | tool:bash:{"command":"ls | wc"} | sleep:5 | hang | drop | dropn:2 | dropn | eof | badjson | length >> status:429,times=2,ra=7 | hangpre | say:x"#;
        // The pipe in the command is a separator of this language, so it is written without spaces there.
        let source = source.replace("ls | wc", "ls|wc");
        let words = |count, delay_ms, word: &str| Words { count, delay_ms, word: word.to_owned() };
        let script: Script = source.parse().unwrap();
        assert_eq!(
            script.steps,
            vec![
                vec![
                    Op::Text(words(10, 0, "word")),
                    Op::Text(words(3, 20, "tick")),
                    Op::Say("a: b, c".to_owned()),
                    Op::Think(words(2, 0, "word")),
                    Op::Reason(" so".to_owned()),
                    Op::Tool { name: "bash".to_owned(), arguments: r#"{"command":"ls|wc"}"#.to_owned() },
                    Op::Sleep(5),
                    Op::Hang,
                    Op::Drop,
                    Op::DropFirst(2),
                    Op::DropFirst(1),
                    Op::Eof,
                    Op::BadJson,
                    Op::Length,
                ],
                vec![
                    Op::Status(Status { code: 429, times: Some(2), retry_after: Some(7) }),
                    Op::HoldHeaders,
                    Op::Say("x".to_owned()),
                ],
            ]
        );
    }

    #[test]
    fn a_fault_names_the_operation_and_what_is_wrong() {
        let cases = [
            ("", "step 1, operation 1 ``: the operation is empty"),
            ("say:a |  | say:b", "step 1, operation 2 ``: the operation is empty"),
            ("say:a | | say:b", "step 1, operation 2 `| say:b`: no such operation"),
            ("say:a >> jump:3", "step 2, operation 1 `jump:3`: no such operation; there are text, say"),
            ("text:n=100001", "`text:n=100001`: n must be a whole number from 0 to 100000"),
            ("text:d=soon", "d must be a whole number from 0 to 3600000"),
            ("text:20", "`20` is not a parameter of this operation"),
            ("tool:bash", "a tool call is written tool:NAME:{arguments}"),
            ("status:200", "the status must be a whole number from 400 to 599"),
            ("status:500,times=0", "times must be a whole number from 1 to"),
            ("say:a | status:500", "`status:500`: this must be the first operation of its step"),
            ("say:a | hangpre", "`hangpre`: this must be the first operation of its step"),
            ("drop:2", "`drop:2`: this operation takes no parameters"),
        ];
        for (source, expected) in cases {
            assert!(fault(source).contains(expected), "{source}: {}", fault(source));
        }
    }

    #[test]
    fn steps_and_operations_are_bounded() {
        let many = |separator: &str, count: usize| vec!["hang"; count].join(separator);
        assert!(many(" >> ", MAX_STEPS).parse::<Script>().is_ok());
        assert_eq!(fault(&many(" >> ", MAX_STEPS + 1)), "1001 steps, at most 1000 are allowed");
        assert!(many(" | ", MAX_OPERATIONS).parse::<Script>().is_ok());
        assert_eq!(
            fault(&many(" | ", MAX_OPERATIONS + 1)),
            "step 1 has 1001 operations, at most 1000 are allowed"
        );
    }

    /// Text that cannot be taken for a separator and keeps its ends when an operation is trimmed.
    fn free_text() -> impl Strategy<Value = String> {
        "( ?[a-zA-Z0-9:,={}\"|>é🦀-]{1,12}){0,4}".prop_filter("separators split an operation", |text| {
            let text = format!("{text} ");
            !text.contains(" | ") && !text.contains(" >> ")
        })
    }

    fn words() -> impl Strategy<Value = Words> {
        (0..=MAX_WORDS, 0..=MAX_PAUSE_MS, "[a-zé=-]{0,6}").prop_map(|(count, delay_ms, word)| Words {
            count,
            delay_ms,
            word,
        })
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            words().prop_map(Op::Text),
            free_text().prop_map(Op::Say),
            words().prop_map(Op::Think),
            free_text().prop_map(Op::Reason),
            ("[a-z_]{1,8}", free_text()).prop_map(|(name, arguments)| Op::Tool { name, arguments }),
            (0..=MAX_PAUSE_MS).prop_map(Op::Sleep),
            (1..=u32::MAX).prop_map(Op::DropFirst),
            Just(Op::Hang),
            Just(Op::Drop),
            Just(Op::Eof),
            Just(Op::BadJson),
            Just(Op::Length),
        ]
    }

    fn opening() -> impl Strategy<Value = Vec<Op>> {
        let status =
            (400..=599_u16, prop::option::of(1..=u32::MAX), prop::option::of(0..=u64::from(u32::MAX)))
                .prop_map(|(code, times, retry_after)| Op::Status(Status { code, times, retry_after }));
        (prop::option::of(status), any::<bool>())
            .prop_map(|(status, hold)| status.into_iter().chain(hold.then_some(Op::HoldHeaders)).collect())
    }

    fn script() -> impl Strategy<Value = Script> {
        let step = (opening(), prop::collection::vec(op(), 1..5))
            .prop_map(|(opening, ops)| opening.into_iter().chain(ops).collect());
        prop::collection::vec(step, 1..5).prop_map(|steps| Script { steps })
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(source in ".{0,200}") {
            let _ = source.parse::<Script>();
        }

        #[test]
        fn no_text_near_the_language_makes_it_panic(
            parts in prop::collection::vec("(text|say|status|tool|dropn|sleep|hang)(:[a-z0-9=,:{}-]{0,10})?", 0..10),
            separators in prop::collection::vec("( \\| | >> |\\||>>| )", 10),
        ) {
            let source: String = parts.iter().zip(&separators).flat_map(|(part, gap)| [part.as_str(), gap]).collect();
            if let Ok(script) = source.parse::<Script>() {
                prop_assert_eq!(script.to_string().parse::<Script>(), Ok(script));
            }
        }

        #[test]
        fn a_printed_script_parses_to_itself(script in script()) {
            prop_assert_eq!(script.to_string().parse::<Script>(), Ok(script));
        }
    }
}
