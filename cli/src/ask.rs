//! What the agent asks for, and what the lines that a person types mean as answers. Pure.

use berth_wire::{
    api::{PermissionAnswer, PermissionDecision, QuestionAnswer},
    event::{EventPayload, PermissionRequested, Question, QuestionRequested},
};

use crate::text::clean_line;

/// A request of the agent that waits for an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// It wants to do something.
    Permission(PermissionRequested),
    /// It wants to know something; the answers so far, one for each question in order.
    Question(QuestionRequested, Vec<Vec<String>>),
}

/// The answer to a whole request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// To a permission request.
    Permission(PermissionAnswer),
    /// To a question request.
    Question(QuestionAnswer),
}

/// What a typed line led to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// It is not an answer; this says what would be.
    Unclear(String),
    /// It answers the question, and there is another.
    More,
    /// The request is answered.
    Done(Reply),
}

impl Ask {
    /// The request that an event makes, if it makes one.
    pub fn of(payload: &EventPayload) -> Option<Self> {
        match payload {
            EventPayload::PermissionRequested(request) => Some(Self::Permission(request.clone())),
            EventPayload::QuestionRequested(request) => Some(Self::Question(request.clone(), Vec::new())),
            _ => None,
        }
    }

    /// Id to answer with.
    pub fn id(&self) -> &str {
        match self {
            Self::Permission(request) => &request.permission_id,
            Self::Question(request, _) => &request.question_id,
        }
    }

    /// True when `payload` says that this request is settled.
    pub fn is_settled_by(&self, payload: &EventPayload) -> bool {
        match (self, payload) {
            (Self::Permission(request), EventPayload::PermissionResolved(resolved)) => {
                request.permission_id == resolved.permission_id
            }
            (Self::Question(request, _), EventPayload::QuestionResolved(resolved)) => {
                request.question_id == resolved.question_id
            }
            _ => false,
        }
    }

    /// The refusal of this request.
    pub fn rejection(&self) -> Reply {
        match self {
            Self::Permission(_) => permission(PermissionDecision::Reject, None),
            Self::Question(..) => Reply::Question(QuestionAnswer { answers: None }),
        }
    }

    /// Allows a permission request once; questions cannot be allowed.
    pub fn allowance(&self) -> Option<Reply> {
        matches!(self, Self::Permission(_)).then(|| permission(PermissionDecision::Once, None))
    }

    /// What stands before the line that is to be typed.
    pub fn prompt(&self) -> String {
        match self {
            Self::Permission(request) if request.always.is_empty() => "  [y]es once / [n]o: ".to_owned(),
            Self::Permission(request) => {
                let always = clean_line(&request.always.join(", "), 80);
                format!("  [y]es once / [a]lways ({always}) / [n]o: ")
            }
            Self::Question(request, answers) => match request.questions.get(answers.len()) {
                Some(question) => question_prompt(question, answers.len() + 1, request.questions.len()),
                None => "  Enter to go on: ".to_owned(),
            },
        }
    }

    /// Takes a typed line.
    pub fn take(&mut self, line: &str) -> Step {
        let line = line.trim();
        match self {
            Self::Permission(request) => permission_step(line, !request.always.is_empty()),
            Self::Question(request, answers) => question_step(line, request, answers),
        }
    }
}

fn permission(decision: PermissionDecision, message: Option<String>) -> Reply {
    Reply::Permission(PermissionAnswer { decision, message })
}

fn permission_step(line: &str, always: bool) -> Step {
    let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let rest = rest.trim();
    let decision = match word.to_lowercase().as_str() {
        "y" | "yes" | "once" if rest.is_empty() => PermissionDecision::Once,
        "a" | "always" if rest.is_empty() && always => PermissionDecision::Always,
        "n" | "no" => {
            let message = Some(rest.to_owned()).filter(|rest| !rest.is_empty());
            return Step::Done(permission(PermissionDecision::Reject, message));
        }
        _ => {
            let choices = if always { "y, a or n" } else { "y or n" };
            return Step::Unclear(format!(
                "  {choices}; `n` and some words tells the agent what to do instead"
            ));
        }
    };
    Step::Done(permission(decision, None))
}

fn question_prompt(question: &Question, number: usize, count: usize) -> String {
    let which = if count > 1 { format!("{number}/{count} ") } else { String::new() };
    let choice = match (question.options.len(), question.multiple) {
        (0, _) => "your answer".to_owned(),
        (options, false) => format!("1-{options}, or your own words"),
        (options, true) => format!("1-{options}, several as 1,2, or your own words"),
    };
    format!("  {which}{choice} (nothing: no answer): ")
}

fn question_step(line: &str, request: &QuestionRequested, answers: &mut Vec<Vec<String>>) -> Step {
    if let Some(question) = request.questions.get(answers.len()) {
        if line.is_empty() {
            return Step::Done(Reply::Question(QuestionAnswer { answers: None }));
        }
        match choose(line, question) {
            Ok(chosen) => answers.push(chosen),
            Err(hint) => return Step::Unclear(hint),
        }
    }
    if answers.len() < request.questions.len() {
        return Step::More;
    }
    Step::Done(Reply::Question(QuestionAnswer { answers: Some(answers.clone()) }))
}

/// Numbers choose options; anything else is an answer of its own.
fn choose(line: &str, question: &Question) -> Result<Vec<String>, String> {
    let words: Vec<&str> =
        line.split(|c: char| c == ',' || c.is_whitespace()).filter(|word| !word.is_empty()).collect();
    let numbers: Option<Vec<usize>> = words.iter().map(|word| word.parse().ok()).collect();
    let Some(numbers) = numbers.filter(|numbers| !numbers.is_empty() && !question.options.is_empty()) else {
        return Ok(vec![line.to_owned()]);
    };
    if numbers.len() > 1 && !question.multiple {
        return Err("  only one can be chosen here".to_owned());
    }
    let label = |number: &usize| {
        let option = number.checked_sub(1).and_then(|index| question.options.get(index));
        option.map(|option| option.label.clone())
    };
    let chosen: Option<Vec<String>> = numbers.iter().map(label).collect();
    chosen.ok_or_else(|| format!("  there are options 1 to {}", question.options.len()))
}

#[cfg(test)]
mod tests {
    use berth_wire::event::QuestionOption;
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn permission_ask(always: &[&str]) -> Ask {
        Ask::Permission(PermissionRequested {
            permission_id: "per_1".to_owned(),
            permission: "bash".to_owned(),
            patterns: vec!["ls -la".to_owned()],
            always: always.iter().map(|&pattern| pattern.to_owned()).collect(),
            tool_call_id: None,
            title: "ls -la".to_owned(),
            metadata: Value::Null,
            expires_at: None,
        })
    }

    fn question_ask(shapes: &[(bool, &[&str])]) -> Ask {
        let question = |&(multiple, labels): &(bool, &[&str])| Question {
            question: "Which?".to_owned(),
            header: String::new(),
            multiple,
            options: labels
                .iter()
                .map(|&label| QuestionOption { label: label.to_owned(), description: String::new() })
                .collect(),
        };
        let questions = shapes.iter().map(question).collect();
        Ask::Question(
            QuestionRequested { question_id: "que_1".to_owned(), questions, tool_call_id: None },
            Vec::new(),
        )
    }

    fn decided(decision: PermissionDecision, message: Option<&str>) -> Step {
        Step::Done(permission(decision, message.map(ToOwned::to_owned)))
    }

    fn answered(answers: &[&[&str]]) -> Step {
        let owned = |words: &&[&str]| words.iter().map(|&word| word.to_owned()).collect();
        let answers = Some(answers.iter().map(owned).collect());
        Step::Done(Reply::Question(QuestionAnswer { answers }))
    }

    #[test]
    fn permission_answers() {
        let cases = [
            ("y", decided(PermissionDecision::Once, None)),
            (" YES ", decided(PermissionDecision::Once, None)),
            ("a", decided(PermissionDecision::Always, None)),
            ("n", decided(PermissionDecision::Reject, None)),
            ("no  use ls instead", decided(PermissionDecision::Reject, Some("use ls instead"))),
        ];
        for (line, step) in cases {
            assert_eq!(permission_ask(&["ls *"]).take(line), step, "{line:?}");
        }
        for unclear in ["", "yep", "y but", "1", "allow"] {
            let step = permission_ask(&["ls *"]).take(unclear);
            assert!(matches!(step, Step::Unclear(_)), "{unclear:?}: {step:?}");
        }
    }

    #[test]
    fn always_is_offered_only_where_it_means_something() {
        assert_eq!(permission_ask(&["ls *"]).prompt(), "  [y]es once / [a]lways (ls *) / [n]o: ");
        assert_eq!(permission_ask(&[]).prompt(), "  [y]es once / [n]o: ");
        assert!(matches!(permission_ask(&[]).take("a"), Step::Unclear(_)));
    }

    #[test]
    fn questions_are_answered_one_after_the_other() {
        let mut ask = question_ask(&[(false, &["Red", "Blue"]), (true, &["A", "B", "C"])]);
        assert_eq!(ask.prompt(), "  1/2 1-2, or your own words (nothing: no answer): ");
        assert!(matches!(ask.take("3"), Step::Unclear(_)));
        assert!(matches!(ask.take("1 2"), Step::Unclear(_)));
        assert_eq!(ask.take("2"), Step::More);
        assert_eq!(ask.take("3, 1"), answered(&[&["Blue"], &["C", "A"]]));
    }

    #[test]
    fn own_words_and_refusals() {
        assert_eq!(question_ask(&[(false, &["Red"])]).take("dark green, 2"), answered(&[&["dark green, 2"]]));
        assert_eq!(question_ask(&[(false, &[])]).take("42"), answered(&[&["42"]]));
        let rejected = Step::Done(Reply::Question(QuestionAnswer { answers: None }));
        assert_eq!(question_ask(&[(false, &["Red"])]).take("  "), rejected);
    }

    proptest! {
        #[test]
        fn no_line_makes_it_panic(line in any::<String>(), multiple in any::<bool>()) {
            permission_ask(&["x"]).take(&line);
            question_ask(&[(multiple, &["A", "B"])]).take(&line);
        }
    }
}
