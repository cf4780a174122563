//! Bounded lists from a peer: sets of known names, and lists of limited length.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;

use serde::de::{Deserialize, Deserializer, Error as _, SeqAccess, Visitor};

/// Maximum items of a list without a limit of its own.
pub const MAX_ITEMS: usize = 10_000;

/// A set of known names in order of first occurrence. Deserialization drops repeated names, so the set never
/// holds more names than are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameSet<T>(Vec<T>);

impl<T> Deref for NameSet<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T, const N: usize> From<[T; N]> for NameSet<T> {
    fn from(names: [T; N]) -> Self {
        Self(names.into())
    }
}

impl<'de, T: Deserialize<'de> + PartialEq> Deserialize<'de> for NameSet<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        each_once(deserializer).map(Self)
    }
}

/// Deserializes a list of known names without repetitions.
pub(crate) fn each_once<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + PartialEq,
{
    struct Once<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de> + PartialEq> Visitor<'de> for Once<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<T>, A::Error> {
            // Not sized by the peer's hint: the set never has more names than the type has variants.
            let mut names = Vec::new();
            while let Some(name) = items.next_element()? {
                // A repetition is dropped, not rejected: it has no effect, and a list of millions of repetitions must
                // not take memory.
                if !names.contains(&name) {
                    names.push(name);
                }
            }
            Ok(names)
        }
    }

    deserializer.deserialize_seq(Once(PhantomData))
}

/// Deserializes a list of at most [`MAX_ITEMS`] items.
pub(crate) fn bounded<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct Bounded<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for Bounded<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<T>, A::Error> {
            // Checked per item: the peer's own length hint is not trusted, and a check at the end would first store the
            // complete list.
            let mut all = Vec::new();
            while let Some(item) = items.next_element()? {
                if all.len() == MAX_ITEMS {
                    return Err(A::Error::custom(format_args!(
                        "must have at most {MAX_ITEMS} items"
                    )));
                }
                all.push(item);
            }
            Ok(all)
        }
    }

    deserializer.deserialize_seq(Bounded(PhantomData))
}

/// Deserializes an optional list of at most [`MAX_ITEMS`] items.
pub(crate) fn bounded_if_any<'de, D, T>(deserializer: D) -> Result<Option<Vec<T>>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    #[derive(serde::Deserialize)]
    #[serde(bound = "T: Deserialize<'de>")]
    struct List<T>(#[serde(deserialize_with = "bounded")] Vec<T>);

    // A wrapper, because `deserialize_with` of an optional field would have to repeat the visitor.
    let list = Option::<List<T>>::deserialize(deserializer)?;
    Ok(list.map(|List(items)| items))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::{AgentFilters, ResourcePolicy};
    use crate::context::AgentInput;
    use crate::resources::StorageArea;

    #[test]
    fn stores_each_name_once() {
        let list = format!("[{}\"plugin\"]", "\"workspace\",".repeat(90_000));
        let set: NameSet<StorageArea> = serde_json::from_str(&list).unwrap();
        assert_eq!(*set, [StorageArea::Workspace, StorageArea::Plugin]);
        assert!(serde_json::from_str::<NameSet<StorageArea>>("[\"other\"]").is_err());
        let policy: ResourcePolicy =
            serde_json::from_str(&format!("{{\"storage\":{list}}}")).unwrap();
        assert_eq!(policy.storage.len(), 2);
    }

    #[test]
    fn rejects_lists_above_limit() {
        let names = |many: usize| format!("[{}]", vec!["\"a\""; many].join(","));
        let filters = |many| {
            let filters = format!("{{\"source\":{}}}", names(many));
            serde_json::from_str::<AgentFilters>(&filters)
        };
        assert_eq!(filters(MAX_ITEMS).unwrap().source.unwrap().len(), MAX_ITEMS);
        let refused = filters(MAX_ITEMS + 1).unwrap_err().to_string();
        assert!(
            refused.contains("must have at most 10000 items"),
            "{refused}"
        );
        let contents = vec!["{\"type\":\"text\"}"; MAX_ITEMS + 1].join(",");
        let input = format!("{{\"contents\":[{contents}]}}");
        assert!(serde_json::from_str::<AgentInput>(&input).is_err());
        assert_eq!(
            serde_json::from_str::<AgentFilters>("{\"source\":null}")
                .unwrap()
                .source,
            None
        );
    }
}
