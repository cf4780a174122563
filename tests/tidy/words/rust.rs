//! Declared names, comments and texts of one Rust file.

use std::collections::HashSet;

use ra_ap_rustc_lexer::{FrontmatterAllowed, LiteralKind, TokenKind, tokenize};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use super::dialect::Source;

/// Reads a file of which the first `product` lines are no test code.
pub(crate) fn read(text: &str, product: usize) -> Source {
    let file = syn::parse_file(text).expect("the workspace compiles");
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
