use std::fmt::Write as _;

use super::*;

/// Builds a PDF from fonts and hexadecimal strings, one per page. `F` is Helvetica.
fn made(pages: &[(&str, &str)]) -> Vec<u8> {
    let kids: Vec<_> = (0..pages.len())
        .map(|n| format!("{} 0 R", 3 + 3 * n))
        .collect();
    let mut objects = vec![
        "<< /Type /Catalog /Pages 2 0 R >>".to_owned(),
        format!(
            "<< /Type /Pages /Kids [{}] /Count {} >>",
            kids.join(" "),
            pages.len()
        ),
    ];
    for (n, (font, text)) in pages.iter().enumerate() {
        objects.push(format!(
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {} 0 R \
             /Resources << /Font << /F1 {} 0 R >> >> >>",
            4 + 3 * n,
            5 + 3 * n
        ));
        objects.push(stream(
            "",
            &format!("BT /F1 12 Tf 72 720 Td <{text}> Tj ET"),
        ));
        objects.push((*font).to_owned());
    }
    file(&objects)
}

fn stream(members: &str, content: &str) -> String {
    let length = content.len();
    format!("<< {members} /Length {length} >>\nstream\n{content}\nendstream")
}

/// A file of these objects, numbered from 1. The first is the catalog.
fn file(objects: &[String]) -> Vec<u8> {
    let mut text = "%PDF-1.4\n".to_owned();
    let mut offsets = Vec::new();
    for (n, object) in objects.iter().enumerate() {
        offsets.push(text.len());
        let _ = write!(text, "{} 0 obj\n{object}\nendobj\n", n + 1);
    }
    let at = text.len();
    let _ = write!(text, "xref\n0 {}\n0000000000 65535 f \n", offsets.len() + 1);
    for offset in &offsets {
        let _ = writeln!(text, "{offset:010} 00000 n ");
    }
    let size = offsets.len() + 1;
    let _ = write!(
        text,
        "trailer\n<< /Size {size} /Root 1 0 R >>\nstartxref\n{at}\n%%EOF\n"
    );
    text.into_bytes()
}

/// A page with a font that maps the code 1 to U+E000, and further objects, numbered from 7.
fn page(members: &str, content: &str, more: &[&str]) -> Vec<u8> {
    let map = "1 begincodespacerange <00> <FF> endcodespacerange\n1 beginbfchar\n<01> <E000>\nendbfchar\n\
               1 beginbfrange\n<20> <7E> <0020>\nendbfrange";
    let objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        &format!(
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R {members} >>"
        ),
        &stream("", content),
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /ToUnicode 6 0 R >>",
        &stream("", map),
    ];
    let objects: Vec<_> = objects
        .iter()
        .chain(more)
        .map(|object| (*object).to_owned())
        .collect();
    file(&objects)
}

const FONT: &str = "/Font << /F1 5 0 R >>";

fn cid_font(encoding: &str, more: &str) -> String {
    format!(
        "<< /Type /Font /Subtype /Type0 /BaseFont /STSong-Light /Encoding /{encoding} {more} /DescendantFonts \
         [<< /Type /Font /Subtype /CIDFontType0 /BaseFont /STSong-Light /DW 1000 >>] >>"
    )
}

fn simple_font(encoding: &str) -> String {
    format!("<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /{encoding} >>")
}

fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::new(), |text, byte| format!("{text}{byte:02X}"))
}

const PLAIN: &str = "506C61696E"; // Plain

#[test]
fn reads_predefined_cmaps() {
    let utf16 =
        |text: &str| -> Vec<u8> { text.encode_utf16().flat_map(u16::to_be_bytes).collect() };
    for (encoding, bytes, text) in [
        ("GBK-EUC-H", b"A\xcc\xec\xc6\xf8".to_vec(), "A天气"),
        (
            "GBK2K-V",
            b"\xcc\xec\x82\x35\x87\x38".to_vec(),
            "天\u{4db5}",
        ),
        ("90ms-RKSJ-H", b"\x93V\x8bC\xb1a".to_vec(), "天気ｱa"),
        ("ETen-B5-H", b"\xa4\xd1\xae\xf0".to_vec(), "天氣"),
        ("KSCms-UHC-H", b"\xb3\xaf\xbe\xbe".to_vec(), "날씨"),
        ("KSCms-UHC-HW-V", b"\xb3\xaf".to_vec(), "날"),
        ("EUC-H", b"\xc5\xb7\xb5\xa4".to_vec(), "天気"),
        ("H", b"\x45\x37\x35\x24".to_vec(), "天気"),
        ("UniGB-UCS2-H", utf16("天气 A"), "天气 A"),
        ("UniJIS-UTF16-H", utf16("気𠮷"), "気𠮷"),
    ] {
        let bytes = made(&[(&cid_font(encoding, ""), &hex(&bytes))]);
        let read = pdf(&bytes).unwrap_or_else(|error| panic!("{encoding}: {error}"));
        assert!(read.text.contains(text), "{encoding}: {:?}", read.text);
        assert_eq!(read.missing, None, "{encoding}");
    }
}

#[test]
fn replaces_unicode_maps_given_by_name() {
    for name in ["Identity-V", "Adobe-GB1-UCS2"] {
        let font = cid_font("GBK-EUC-H", &format!("/ToUnicode /{name}"));
        let read = pdf(&made(&[(&font, "CCEC")])).unwrap();
        assert!(read.text.contains('天'), "{name}: {:?}", read.text);
    }
}

#[test]
fn reads_simple_fonts_of_other_encodings() {
    for encoding in ["PDFDocEncoding", "StandardEncoding", "Whatever"] {
        let read = pdf(&made(&[(&simple_font(encoding), PLAIN)])).unwrap();
        assert!(read.text.contains("Plain"), "{encoding}: {:?}", read.text);
    }
}

#[test]
fn unreadable_pages_do_not_affect_others() {
    let good = simple_font("WinAnsiEncoding");
    for (font, named) in [
        (cid_font("CNS-EUC-H", ""), "CNS-EUC-H"),
        (cid_font("Identity-H", ""), "Identity-H"),
        ("<< /Type /Font /Subtype /Type0 >>".to_owned(), ""),
    ] {
        let read = pdf(&made(&[(&good, PLAIN), (&font, "A4A1"), (&good, PLAIN)])).unwrap();
        assert_eq!(read.text.matches("Plain").count(), 2, "{named}: {read:?}");
        let titles: Vec<_> = read.headings.iter().map(|one| one.title.as_str()).collect();
        assert_eq!(titles, ["Page 1", "Page 2", "Page 3"]);
        let missing = read.missing.unwrap();
        assert!(missing.starts_with("page 2 is not read: "), "{missing}");
        assert!(missing.contains(named), "{missing}");
        let alone = pdf(&made(&[(&font, "A4A1")])).unwrap_err();
        assert!(
            alone.contains("no page can be read") && alone.contains(named),
            "{alone}"
        );
    }
}

#[test]
fn replacement_texts_stand_for_their_glyphs() {
    let span = |list: &str| {
        format!("BT /F1 12 Tf 72 720 Td (Of) Tj /Span {list} BDC (\\001) Tj EMC (ce) Tj ET")
    };
    let resources = format!("/Resources << {FONT} >>");
    let named = format!("/Resources << {FONT} /Properties << /P0 7 0 R >> >>");
    let form = format!("/Resources << {FONT} /XObject << /X 7 0 R >> >>");
    let inner = stream(
        &format!("/Type /XObject /Subtype /Form /BBox [0 0 612 792] /Resources << {FONT} >>"),
        &span("<< /ActualText (fi) >>"),
    );
    let element = "<< /S /Span /Pg 3 0 R /K [0 << /Type /MCR /MCID 1 >>] /ActualText (fi) >>";
    let two = "BT /F1 12 Tf 72 720 Td (Of) Tj /Span << /MCID 0 >> BDC (\\001) Tj EMC \
               /Span << /MCID 1 >> BDC (\\001) Tj EMC (ce) Tj ET";
    for (members, content, more) in [
        (&resources, span("<< /ActualText (fi) >>"), ""),
        (&resources, span("<< /ActualText <FEFF00660069> >>"), ""),
        (&resources, span("<< /ActualText <EFBBBF6669> >>"), ""),
        (&named, span("/P0"), "<< /ActualText (fi) >>"),
        (&form, "/X Do".to_owned(), &inner),
        (&resources, two.to_owned(), element),
        // The outer text counts, and several glyphs give it once.
        (
            &resources,
            "BT /F1 12 Tf 72 720 Td (Of) Tj /Span << /ActualText (fi) >> BDC (\\001) Tj \
             /Span << /ActualText (no) >> BDC (\\001) Tj EMC /P BMC EMC (\\001) Tj EMC (ce) Tj ET"
                .to_owned(),
            "",
        ),
        (
            &resources,
            "BT /F1 12 Tf 72 720 Td (Offi) Tj /Span << /ActualText () >> BDC (-) Tj EMC (ce) Tj ET"
                .to_owned(),
            "",
        ),
    ] {
        let read = pdf(&page(members, &content, &[more])).unwrap();
        assert_eq!(read.text.trim(), "Office", "{content} {more}");
        assert_eq!(read.missing, None);
    }
    let picture = "/Figure << /ActualText (A logo) >> BDC 0 0 10 10 re f EMC \
                   BT /F1 12 Tf 72 720 Td (End) Tj ET";
    let read = pdf(&page(&resources, picture, &[])).unwrap();
    assert_eq!(read.text.trim(), "A logo \n\nEnd");
    // A sequence without an end.
    let open = "BT /F1 12 Tf 72 720 Td /Span << /ActualText (fi) >> BDC (\\001) Tj ET";
    let read = pdf(&page(&resources, open, &[])).unwrap();
    assert_eq!(read.text.trim(), "fi");
}

#[test]
fn form_fields_are_text() {
    let widget = "/Type /Annot /Subtype /Widget";
    let annotations = "/Annots [7 0 R 8 0 R 9 0 R 11 0 R 12 0 R 13 0 R 14 0 R 15 0 R]";
    let fields = [
        &format!("<< {widget} /FT /Tx /T (name) /V (Ada) >>"),
        &format!(
            "<< {widget} /FT /Ch /T (city) /TU (Home town) /V (b) /Opt [[(a) (Aachen)] [(b) (Bonn)]] >>"
        ),
        &format!("<< {widget} /Parent 10 0 R >>"),
        "<< /FT /Btn /T (paid) /V /Yes >>",
        &format!("<< {widget} /Parent 10 0 R >>"),
        &format!("<< {widget} /FT /Tx /Ff 8192 /T (pin) /V (1234) >>"),
        &format!("<< {widget} /FT /Tx /F 2 /T (hidden) /V (never) >>"),
        &format!("<< {widget} /FT /Btn /T (box) /V /Off >>"),
        "<< /Type /Annot /Subtype /FreeText /Contents (typed onto it) >>",
    ];
    let members = format!("/Resources << {FONT} >> {annotations}");
    let content = "BT /F1 12 Tf 72 720 Td (Form) Tj ET";
    let read = pdf(&page(&members, content, &fields.map(AsRef::as_ref))).unwrap();
    assert_eq!(
        read.text.trim(),
        "Form\nname: Ada\nHome town: Bonn\npaid: Yes\ntyped onto it"
    );
    assert_eq!(read.missing, None);
}
