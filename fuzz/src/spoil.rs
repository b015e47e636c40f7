//! Frames that are wrong in one place. Pure.

use berth_opencode::GlobalEvent;
use serde_json::{Value, json};

use crate::input::Input;

/// One of `frames` with something else in one place, when it is an event still.
pub(crate) fn spoil(frames: &[Value], input: &mut Input<'_>) -> Option<GlobalEvent> {
    let mut frame = input.choose(frames)?.clone();
    let depth = input.byte() % 8;
    change(&mut frame, depth, frames, input);
    GlobalEvent::from_value(frame).ok()
}

/// Goes down to at most this depth, and changes what is there.
fn change(place: &mut Value, depth: u8, frames: &[Value], input: &mut Input<'_>) {
    if depth > 0
        && let Some(child) = child(place, input.byte())
    {
        return change(child, depth - 1, frames, input);
    }
    match (input.byte() % 16, &mut *place) {
        (0, Value::Object(map)) => {
            let key = map.keys().nth(usize::from(input.byte()) % map.len().max(1)).cloned();
            key.and_then(|key| map.remove(&key));
        }
        (0 | 1, Value::Array(list)) => list.extend(list.clone()),
        (1, Value::Object(map)) => {
            map.insert(String::from_utf8_lossy(input.bytes(2)).into_owned(), Value::Null);
        }
        (2, Value::Number(number)) => *place = json!(number.as_i64().unwrap_or_default() + 1),
        (3, Value::Number(number)) => *place = json!(number.as_i64().unwrap_or_default() - 1),
        (2 | 3, Value::String(text)) => text.push_str(&String::from_utf8_lossy(input.bytes(3))),
        (4, Value::String(text)) => text.truncate(text.floor_char_boundary(text.len() / 2)),
        (kind, _) => *place = value(kind, frames, input),
    }
}

fn child(place: &mut Value, which: u8) -> Option<&mut Value> {
    let nth = |count: usize| usize::from(which).checked_rem(count);
    match place {
        Value::Object(map) => nth(map.len()).and_then(|index| map.values_mut().nth(index)),
        Value::Array(list) => nth(list.len()).and_then(|index| list.get_mut(index)),
        _ => None,
    }
}

fn value(kind: u8, frames: &[Value], input: &mut Input<'_>) -> Value {
    match kind {
        0 => Value::Null,
        1 => json!({}),
        2 => json!([]),
        3 => json!(true),
        4 => json!(""),
        5 => json!(input.byte()),
        6 => json!(i64::MIN),
        7 => json!(u64::MAX),
        8 => json!(1.7e308),
        9 => json!(String::from_utf8_lossy(input.bytes(4))),
        // What stands somewhere in another frame: ids, kinds, states.
        _ => {
            let mut place = input.choose(frames).cloned().unwrap_or_default();
            for _ in 0..kind {
                match child(&mut place, input.byte()) {
                    Some(child) => place = child.take(),
                    None => break,
                }
            }
            place
        }
    }
}
