//! `Debug` output without contents, for the types that hold messages, inputs or outputs.

/// Implements `Debug` for a type that holds contents. It prints the fields before the `;`, and how
/// many items each list after it has.
macro_rules! debug_without_content {
    ($type:ident { $($field:ident),* $(; $($list:ident),+)? }) => {
        impl ::std::fmt::Debug for $type {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                let mut debug = f.debug_struct(stringify!($type));
                $(debug.field(stringify!($field), &self.$field);)*
                $($(debug.field(stringify!($list), &self.$list.len());)+)?
                debug.finish_non_exhaustive()
            }
        }
    };
}
