//! JSON in one order: what is compared by its bytes, or by a hash of them, is written with the members of each object
//! sorted by name, at every depth. Pure.
//!
//! The order that `serde_json` keeps depends on a feature of it, that is on what else a program is compiled with; and
//! that of a manifest on who wrote it.

use serde::Serialize;
use serde_json::Value;

/// Data as JSON, in order.
pub fn value(data: &impl Serialize) -> Value {
    let mut value = serde_json::to_value(data).expect("manifests and what is made of them are plain data");
    value.sort_all_objects();
    value
}

/// Data as the text of its JSON, in order and without blanks.
pub fn text(data: &impl Serialize) -> String {
    value(data).to_string()
}

#[cfg(test)]
mod tests {
    use serde::ser::SerializeMap;

    use super::*;

    /// An object that is written in the order in which it stands here, whatever a map of JSON would make of it.
    struct Written(Vec<(&'static str, Vec<Self>)>);

    impl Serialize for Written {
        fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            let mut map = serializer.serialize_map(None)?;
            for (name, members) in &self.0 {
                map.serialize_entry(name, members)?;
            }
            map.end()
        }
    }

    fn written(backwards: bool) -> Written {
        let mut inner = vec![("x", Vec::new()), ("y", Vec::new())];
        let mut outer = vec![("a", Vec::new()), ("b", Vec::new()), ("list", Vec::new())];
        if backwards {
            inner.reverse();
            outer.reverse();
        }
        let list = outer.iter_mut().find(|(name, _)| *name == "list");
        list.unwrap().1.push(Written(inner));
        Written(outer)
    }

    #[test]
    fn the_order_of_members_makes_no_difference() {
        let text = text(&written(false));
        assert_eq!(text, r#"{"a":[],"b":[],"list":[{"x":[],"y":[]}]}"#);
        assert_eq!(super::text(&written(true)), text);
    }
}
