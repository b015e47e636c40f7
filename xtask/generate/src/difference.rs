//! Where two texts first differ. Pure.

/// How many differing lines are shown of each text.
const SHOWN: usize = 5;

/// The first lines that differ, `-` for those of `current` and `+` for those of `wanted`; `None` if equal.
pub(crate) fn first_difference(current: &str, wanted: &str) -> Option<String> {
    if current == wanted {
        return None;
    }
    let (old, new): (Vec<&str>, Vec<&str>) = (current.split('\n').collect(), wanted.split('\n').collect());
    let before = old.iter().zip(&new).take_while(|(old, new)| old == new).count();
    let after = old[before..]
        .iter()
        .rev()
        .zip(new[before..].iter().rev())
        .take_while(|(old, new)| old == new)
        .count();
    let mut shown = vec![format!("  line {}", before + 1)];
    for (sign, lines) in [('-', &old[before..old.len() - after]), ('+', &new[before..new.len() - after])] {
        shown.extend(lines.iter().take(SHOWN).map(|line| format!("  {sign} {line}")));
        if lines.len() > SHOWN {
            shown.push(format!("  {sign} … {} more", lines.len() - SHOWN));
        }
    }
    Some(shown.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_have_no_difference() {
        assert_eq!(first_difference("a\nb\n", "a\nb\n"), None);
    }

    #[test]
    fn the_changed_lines_are_shown_between_what_both_begin_and_end_with() {
        let difference = first_difference("a\nb\nc\nz\n", "a\nB\nz\n").unwrap();
        assert_eq!(difference, "  line 2\n  - b\n  - c\n  + B");
        assert_eq!(first_difference("a\n", "a\nb\n").unwrap(), "  line 2\n  + b");
        assert_eq!(first_difference("a", "a\n").unwrap(), "  line 2\n  + ", "only the last newline");
    }

    #[test]
    fn a_long_difference_is_cut() {
        let difference = first_difference("", &"x\n".repeat(20)).unwrap();
        assert!(difference.ends_with("\n  + … 15 more"), "{difference}");
    }
}
