//! Declared names, comments, texts and parameters of one Rust file.

use std::collections::HashSet;

use ra_ap_rustc_lexer::{FrontmatterAllowed, LiteralKind, TokenKind, tokenize};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use super::dialect::Source;

/// Reads a file of which the first `product` lines are no test code.
pub(crate) fn read(text: &str, product: usize) -> Source {
    let file = parsed(text);
    let mut items = Items::default();
    items.visit_file(&file);
    let mut source = Source {
        names: items.names,
        lines: product,
        ..Source::default()
    };
    for (line, kind, piece) in tokens(text) {
        match kind {
            TokenKind::LineComment { doc_style } => {
                let words = piece.trim_start_matches(['/', '!']).trim();
                source.comments.push((line, words.to_owned()));
                let is_reason = doc_style.is_none() && items.bodies.contains(&line);
                source.reasons += usize::from(is_reason && line <= product);
            }
            TokenKind::Literal { kind, .. } if is_text(kind) && piece.contains(' ') => {
                source.texts.push((line, piece.to_owned()));
            }
            _ => {}
        }
    }
    source
}

fn parsed(text: &str) -> syn::File {
    syn::parse_file(text).expect("the workspace compiles")
}

/// Line number, kind and text of each token.
pub(crate) fn tokens(text: &str) -> Vec<(usize, TokenKind, &str)> {
    let mut found = Vec::new();
    let (mut at, mut line) = (0, 1);
    for token in tokenize(text, FrontmatterAllowed::No) {
        let end = at + token.len as usize;
        let piece = &text[at..end];
        found.push((line, token.kind, piece));
        line += piece.matches('\n').count();
        at = end;
    }
    found
}

fn is_text(kind: LiteralKind) -> bool {
    matches!(kind, LiteralKind::Str { .. } | LiteralKind::RawStr { .. })
}

/// Names that a file declares, and the lines of its function bodies.
#[derive(Default)]
struct Items {
    names: Vec<(usize, String)>,
    bodies: HashSet<usize>,
}

impl Items {
    fn name(&mut self, ident: &syn::Ident) {
        let line = ident.span().start().line;
        self.names.push((line, ident.to_string()));
    }
}

impl<'ast> Visit<'ast> for Items {
    fn visit_block(&mut self, block: &'ast syn::Block) {
        let span = block.span();
        self.bodies.extend(span.start().line..span.end().line);
        visit::visit_block(self, block);
    }

    fn visit_pat_ident(&mut self, pattern: &'ast syn::PatIdent) {
        self.name(&pattern.ident);
        visit::visit_pat_ident(self, pattern);
    }

    fn visit_signature(&mut self, signature: &'ast syn::Signature) {
        self.name(&signature.ident);
        visit::visit_signature(self, signature);
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        if let Some(ident) = &field.ident {
            self.name(ident);
        }
        visit::visit_field(self, field);
    }

    fn visit_variant(&mut self, variant: &'ast syn::Variant) {
        self.name(&variant.ident);
        visit::visit_variant(self, variant);
    }

    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        self.name(&item.ident);
        visit::visit_item_const(self, item);
    }

    fn visit_item_static(&mut self, item: &'ast syn::ItemStatic) {
        self.name(&item.ident);
        visit::visit_item_static(self, item);
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.name(&item.ident);
        visit::visit_item_mod(self, item);
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.name(&item.ident);
        visit::visit_item_struct(self, item);
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.name(&item.ident);
        visit::visit_item_enum(self, item);
    }
}

/// Type of a parameter that hides its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ParameterKind {
    /// A `bool` of a `pub` function or of a function of a `pub` trait.
    PublicBool,
    /// A `bool` of a function that is visible in a part of its crate.
    RestrictedBool,
    /// A tuple of any function.
    Tuple,
}

/// A parameter that hides its meaning.
pub(crate) struct Parameter {
    pub(crate) line: usize,
    pub(crate) function: String,
    pub(crate) kind: ParameterKind,
}

/// Parameters of types `bool` and tuple. Implementations of traits are left out: the trait decides.
pub(crate) fn parameters(text: &str) -> Vec<Parameter> {
    let mut signatures = Signatures::default();
    signatures.visit_file(&parsed(text));
    signatures.found
}

#[derive(Default)]
struct Signatures {
    found: Vec<Parameter>,
}

impl Signatures {
    fn read(&mut self, visibility: &syn::Visibility, signature: &syn::Signature) {
        for input in &signature.inputs {
            let syn::FnArg::Typed(parameter) = input else {
                continue;
            };
            let kind = match (&*parameter.ty, visibility) {
                (syn::Type::Tuple(tuple), _) if !tuple.elems.is_empty() => ParameterKind::Tuple,
                (syn::Type::Path(path), _) if !path.path.is_ident("bool") => continue,
                (syn::Type::Path(_), syn::Visibility::Public(_)) => ParameterKind::PublicBool,
                (syn::Type::Path(_), syn::Visibility::Restricted(_)) => {
                    ParameterKind::RestrictedBool
                }
                _ => continue,
            };
            self.found.push(Parameter {
                line: signature.ident.span().start().line,
                function: signature.ident.to_string(),
                kind,
            });
        }
    }
}

impl<'ast> Visit<'ast> for Signatures {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.read(&item.vis, &item.sig);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.read(&item.vis, &item.sig);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if item.trait_.is_none() {
            visit::visit_item_impl(self, item);
        }
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        for inner in &item.items {
            if let syn::TraitItem::Fn(function) = inner {
                self.read(&item.vis, &function.sig);
            }
        }
    }
}
