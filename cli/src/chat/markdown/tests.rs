//! What Markdown looks like, and that the way in which it came makes no difference.

use proptest::prelude::*;

use super::*;

/// All lines of a text that is there at once.
fn rendered(source: &str, width: usize) -> Vec<String> {
    texts(&whole(source, width))
}

fn whole(source: &str, width: usize) -> Vec<Line> {
    let mut stream = Stream::default();
    stream.push(source);
    stream.settle(&mut Markdown::new(true), width, true)
}

fn texts(lines: &[Line]) -> Vec<String> {
    lines.iter().map(Line::text).collect()
}

#[test]
fn blocks_look_as_they_should() {
    let source = "\
# A *title*

Some **bold** text, `code`
and a [link](https://example.com).

- one
- two
  - nested
    more
- [x] done

3. three
4. four

> quoted
> text

```rust
fn main() {}

\tlet x;
```

| a | long head |
|--:|---|
| 1 | x |
| 22 | y |

---
<b>raw</b>
";
    let expected = [
        "# A title",
        "",
        "Some bold text, code and a link",
        "(https://example.com).",
        "",
        "• one",
        "• two",
        "  • nested more",
        "• ☑ done",
        "",
        "3. three",
        "4. four",
        "",
        "│ quoted text",
        "",
        "  fn main() {}",
        "  ",
        "      let x;",
        "",
        " a │ long head",
        "───┼──────────",
        " 1 │ x",
        "22 │ y",
        "",
        "────────────────────────────────",
        "",
        "<b>raw</b>",
    ];
    assert_eq!(rendered(source, 32), expected);
}

#[test]
fn without_styles_marks_are_shown() {
    let mut stream = Stream::default();
    stream.push("Some **bold**, *soft* and `code`.");
    let lines = stream.settle(&mut Markdown::new(false), 80, true);
    assert_eq!(texts(&lines), ["Some **bold**, *soft* and `code`."]);
}

#[test]
fn code_has_colours() {
    let line = whole("```rs\nlet x = \"a\"; // note\n```", 80).remove(0);
    let mut out = String::new();
    line.write(true, &mut out);
    assert!(out.contains("\u{1b}[35mlet\u{1b}[0m") && out.contains("\u{1b}[32m\"a\"\u{1b}[0m"), "{out:?}");
    assert!(out.contains("\u{1b}[2m// note\u{1b}[0m"), "{out:?}");
}

#[test]
fn a_table_that_does_not_fit_is_narrowed_and_then_taken_apart() {
    let source = "| name | what it is |\n|---|---|\n| berth | a place for a ship |\n";
    assert_eq!(
        rendered(source, 22),
        ["name  │ what it is", "──────┼───────────────", "berth │ a place for a", "      │ ship"]
            .map(ToOwned::to_owned)
    );
    assert_eq!(rendered(source, 12), ["name: berth", "what it is:", "  a place", "  for a ship"]);
}

#[test]
fn an_address_that_differs_from_its_text_is_shown() {
    assert_eq!(rendered("[bank](http://evil.example)", 80), ["bank (http://evil.example)"]);
    assert_eq!(rendered("<http://a.example>", 80), ["http://a.example"]);
}

#[test]
fn finished_blocks_are_given_out_and_the_open_one_is_not() {
    let (mut stream, mut markdown) = (Stream::default(), Markdown::new(true));
    let mut step = |more: &str| {
        stream.push(more);
        let settled = texts(&stream.settle(&mut markdown, 40, false));
        (settled, texts(&stream.open(&mut markdown, 40)))
    };
    let lines = |lines: &[&str]| lines.iter().map(|&line| line.to_owned()).collect::<Vec<_>>();
    assert_eq!(step("One para"), (lines(&[]), lines(&["One para"])));
    assert_eq!(step("graph.\n\nTwo"), (lines(&[]), lines(&["One paragraph.", "", "Two"])));
    assert_eq!(step(".\n"), (lines(&["One paragraph."]), lines(&["", "Two."])));
    assert_eq!(step("\n```\na\nb\n"), (lines(&["", "Two.", "", "  a"]), lines(&["  b"])));
    assert_eq!(step("c"), (lines(&[]), lines(&["  b", "  c"])));
    assert_eq!(step("\n```\n- x\n- y"), (lines(&["  b", "  c"]), lines(&["", "• x", "• y"])));
}

#[test]
fn nested_without_end_is_no_trouble() {
    let deep = format!("{}x", "> - ".repeat(200));
    assert!(!rendered(&deep, 20).is_empty());
}

proptest! {
    #[test]
    fn pieces_make_no_difference(
        pieces in proptest::collection::vec(
            prop_oneof![
                Just("word "), Just("\n"), Just("\n\n"), Just("- item\n"), Just("1. first\n"), Just("```\n"),
                Just("| a | b |\n"), Just("|---|---|\n"), Just("> quote\n"), Just("# head\n"), Just("**"), Just("`"),
                Just("  - nested\n"), Just("世界"), Just("<i>"), Just("---\n"),
            ],
            0..40,
        ),
        width in 4_usize..40,
    ) {
        let mut markdown = Markdown::new(true);
        let mut stream = Stream::default();
        let mut lines = Vec::new();
        for piece in &pieces {
            stream.push(piece);
            lines.extend(stream.settle(&mut markdown, width, false));
            stream.open(&mut markdown, width);
        }
        lines.extend(stream.settle(&mut markdown, width, true));
        let words = |lines: &[Line]| -> String {
            texts(lines).concat().chars().filter(|c| c.is_alphanumeric()).collect()
        };
        let at_once = whole(&pieces.concat(), width);
        prop_assert_eq!(words(&lines), words(&at_once), "{:?}\n{:?}", texts(&lines), texts(&at_once));
    }

    #[test]
    fn no_text_makes_it_panic_or_writes_what_a_terminal_obeys(source in any::<String>(), width in 1_usize..60) {
        for line in whole(&source, width) {
            let mut out = String::new();
            line.write(false, &mut out);
            prop_assert!(!out.chars().any(char::is_control));
        }
    }
}

#[test]
fn of_a_line_without_an_end_only_the_end_is_drawn_and_all_of_it_becomes_final() {
    let (mut markdown, mut stream) = (Markdown::new(true), Stream::default());
    let words = (0..20_000).map(|n| format!("w{n} ")).collect::<Vec<_>>().concat();
    stream.push(&words);
    assert!(stream.settle(&mut markdown, 80, false).is_empty());
    let open = texts(&stream.open(&mut markdown, 80));
    assert_eq!(open.first().map(String::as_str), Some("…"));
    assert!(open.len() < 1000 && open.last().unwrap().trim_end().ends_with("w19999"), "{}", open.len());
    let last = texts(&stream.settle(&mut markdown, 80, true)).join(" ");
    assert_eq!(last.trim(), words.trim());
}
