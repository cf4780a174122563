//! Words of the protocol: enums whose variants have one text each, the same in declarations, records and transcripts.

/// A closed list of words.
pub(crate) trait Word: Copy + 'static {
    /// All words with their texts, in the order of the specification.
    const WORDS: &'static [(&'static str, Self)];
}

/// Defines an enum of words: its variants with their texts, `ALL`, `as_str`, and the same texts in JSON.
macro_rules! words {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
        )]
        pub enum $name { $($(#[$doc])* #[serde(rename = $text)] $variant,)* }

        impl $name {
            /// All words, in the order of the specification.
            pub const ALL: [Self; [$($text),*].len()] = [$(Self::$variant),*];

            /// The word in declarations, records and transcripts.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }

        impl crate::word::Word for $name {
            const WORDS: &'static [(&'static str, Self)] = &[$(($text, Self::$variant)),*];
        }
    };
}
