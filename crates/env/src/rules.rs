//! Rules of order that can be broken on purpose.

/// Declares the rules of order that make something safe as `enum Rule`; explorations may break one of them, to show that they
/// would notice its absence. Each rule has a name for people and a sentence.
///
/// ```
/// ashlar_env::rules! {
///     FlushOnSync = "flush-on-sync":
///         "a sync returns only after the device flush",
///     CopyBeforeMove = "copy-before-move":
///         "copies are durable before the log speaks of them",
/// }
/// assert_eq!(Rule::named("flush-on-sync"), Some(Rule::FlushOnSync));
/// assert_eq!(Rule::CopyBeforeMove.name(), "copy-before-move");
/// assert_eq!(Rule::ALL.len(), 2);
/// ```
#[macro_export]
macro_rules! rules {
    ($($Rule:ident = $name:literal: $what:literal,)+) => {
        /// A rule of order that an exploration may break on purpose.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Rule {
            $(#[doc = concat!("`", $name, "`: ", $what, ".")] $Rule,)+
        }

        impl Rule {
            /// All rules, with their names and what they say.
            pub const ALL: [(Rule, &'static str, &'static str); [$($name),+].len()] =
                [$((Rule::$Rule, $name, $what)),+];

            /// A rule by its name.
            pub fn named(name: &str) -> Option<Rule> {
                Rule::ALL.into_iter().find(|(_, known, _)| *known == name).map(|(rule, ..)| rule)
            }

            /// Its name.
            pub fn name(self) -> &'static str {
                match self {
                    $(Rule::$Rule => $name,)+
                }
            }
        }
    };
}
