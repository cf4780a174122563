use super::*;

const LIMITS: ResultLimits = ResultLimits {
    event_bytes: 64,
    run_bytes: 64,
    run_events: 9,
    state_value_bytes: 9,
};

fn read(format: ResultFormat, chunks: &[&str]) -> Result<Vec<String>, TooLarge> {
    let mut reader = ResultReader::new(format, 32, LIMITS);
    let mut items = Vec::new();
    for chunk in chunks {
        reader.push(chunk.as_bytes(), &mut items)?;
    }
    reader.finish(&mut items);
    Ok(items
        .into_iter()
        .filter_map(|item| match item {
            ReaderItem::Result(raw) => Some(String::from_utf8(raw).unwrap()),
            ReaderItem::Heartbeat => None,
        })
        .collect())
}

#[test]
fn reads_lines_split_across_chunks() {
    let lines = ["{\"a\":1}\n{\"b", "\":2}\r\n\n{\"c\":3}"];
    assert_eq!(
        read(ResultFormat::JsonLines, &lines).unwrap(),
        ["{\"a\":1}", "{\"b\":2}\r", "{\"c\":3}"]
    );
    let long = "x".repeat(33);
    assert_eq!(read(ResultFormat::JsonLines, &[&long]), Err(TooLarge::Line));
}

#[test]
fn reads_results_of_complete_documents() {
    let body = ["{\"results\":[{\"a\":1},", "{\"b\":2}]}"];
    assert_eq!(
        read(ResultFormat::Json, &body).unwrap(),
        ["{\"a\":1}", "{\"b\":2}"]
    );
    assert_eq!(
        read(ResultFormat::Json, &["{\"x\":1}"]).unwrap(),
        ["{\"x\":1}"]
    );
    let many = format!("{{\"results\":[{}1]}}", "1,".repeat(20));
    assert_eq!(
        read(ResultFormat::Json, &[&many]).unwrap().len(),
        10,
        "one past the limit"
    );
    let long = "x".repeat(65);
    assert_eq!(read(ResultFormat::Json, &[&long]), Err(TooLarge::Document));
}

#[test]
fn strips_byte_order_mark_at_start_only() {
    let lines = ["\u{feff}{\"a\":1}\n\u{feff}{\"b\":2}"];
    assert_eq!(
        read(ResultFormat::JsonLines, &lines).unwrap(),
        ["{\"a\":1}", "\u{feff}{\"b\":2}"]
    );
    let body = ["\u{feff}{\"results\":[{\"a\":1}]}"];
    assert_eq!(read(ResultFormat::Json, &body).unwrap(), ["{\"a\":1}"]);
    // Cut within it.
    let mut reader = ResultReader::new(ResultFormat::JsonLines, 32, LIMITS);
    let mut items = Vec::new();
    for byte in "\u{feff}1\n".as_bytes() {
        reader.push(&[*byte], &mut items).unwrap();
    }
    assert_eq!(items, [ReaderItem::Result(b"1".to_vec())]);
}

#[test]
fn bounds_documents_below_run_bytes() {
    let fits = |bytes: usize, limits: ResultLimits| {
        let mut reader = ResultReader::new(ResultFormat::Json, 32, limits);
        let chunk = vec![b' '; 1024 * 1024];
        let mut chunks = std::iter::repeat_n(&chunk, bytes / chunk.len());
        chunks.all(|chunk| reader.push(chunk, &mut Vec::new()).is_ok())
    };
    let wide = ResultLimits {
        run_bytes: 64 * 1024 * 1024,
        ..LIMITS
    };
    assert!(fits(DOCUMENT_BYTES, wide));
    assert!(!fits(DOCUMENT_BYTES + 1024 * 1024, wide));
    let large_events = ResultLimits {
        event_bytes: 16 * 1024 * 1024,
        ..wide
    };
    assert!(fits(16 * 1024 * 1024, large_events));
}

fn deviations(format: ResultFormat, body: &str) -> (usize, Vec<Deviation>, Option<&'static str>) {
    let wide = ResultLimits {
        event_bytes: 1000,
        run_bytes: 10_000,
        ..LIMITS
    };
    let mut reader = ResultReader::new(format, 1000, wide);
    let mut items = Vec::new();
    for byte in body.as_bytes() {
        reader.push(&[*byte], &mut items).unwrap();
    }
    reader.finish(&mut items);
    items.retain(|item| *item != ReaderItem::Heartbeat);
    let deviations = reader.take_deviations();
    assert!(reader.take_deviations().is_empty(), "each is reported once");
    (items.len(), deviations, reader.fault())
}

#[test]
fn names_each_deviation_once() {
    use Deviation::*;
    use ResultFormat::*;
    let one = r#"{"run_id":"r","type":"message.delta"}"#;
    let end = r#"{"run_id":"r","type":"run.completed"}"#;
    for (format, body, count, expected) in [
        (
            EventStream,
            format!("data: {one}\n\ndata: {end}\n\n"),
            2,
            &[][..],
        ),
        (
            EventStream,
            format!("data: {one}\ndata: {end}\n\n"),
            2,
            &[SingleLineBreaks],
        ),
        (
            EventStream,
            format!("data: {one}\n\ndata: {end}"),
            2,
            &[UnfinishedEvent],
        ),
        (
            EventStream,
            format!("event: ping\ndata: x\n\nevent: p\ndata: {{}}\n\ndata: {end}\n\n"),
            1,
            &[ForeignEvent],
        ),
        (
            EventStream,
            format!("event: own\ndata: {one}\n\nevent: message\ndata: x\n\n"),
            2,
            &[],
        ),
        (
            EventStream,
            format!("\n{one}\n\n{end}\n"),
            2,
            &[OtherFraming],
        ),
        (JsonLines, format!("{one}\n{end}"), 2, &[]),
        (
            JsonLines,
            format!("{{\"results\":\n[{one},{end}]}}"),
            2,
            &[OtherFraming],
        ),
        (
            JsonLines,
            format!("id: 1\ndata: {one}\n\n: x\n"),
            1,
            &[OtherFraming],
        ),
        (Json, format!("{{\"results\":[{one},{end}]}}"), 2, &[]),
        (Json, format!("{one}\n{end}\n"), 2, &[OtherFraming]),
        (
            Json,
            format!("{{\"results\":[{},{end}]}}", one.replace("r\"", "\u{1}\"")),
            2,
            &[Text],
        ),
    ] {
        let (found, reported, fault) = deviations(format, &body);
        assert_eq!((found, reported.as_slice()), (count, expected), "{body}");
        assert_eq!(fault, None, "{body}");
    }
    for (format, body, named) in [
        (
            EventStream,
            "data: {\"run_id\":\"r\"}\n",
            "no empty line after it",
        ),
        (EventStream, "Internal Server Error", "holds no event"),
        (EventStream, "\n\r\n", "empty"),
        (JsonLines, "{\"run", "cut"),
        (Json, "{}", "no {\"results\""),
    ] {
        let (_, _, fault) = deviations(format, body);
        assert!(fault.unwrap().contains(named), "{body}: {fault:?}");
    }
}

#[test]
fn accepts_complete_terminals_of_broken_bodies() {
    let end = r#"{"run_id":"r","type":"run.failed"}"#;
    let read = |format: ResultFormat, body: &str| {
        let mut reader = ResultReader::new(format, 1000, LIMITS);
        let mut items = Vec::new();
        reader.push(body.as_bytes(), &mut items).unwrap();
        reader.finish_broken(&mut items);
        items.len()
    };
    assert_eq!(
        read(ResultFormat::EventStream, &format!("data: {end}\n")),
        1
    );
    assert_eq!(read(ResultFormat::JsonLines, end), 1);
    assert_eq!(read(ResultFormat::Json, &format!("[{end}]")), 1);
    for (format, body) in [
        (ResultFormat::EventStream, format!("data: {}", &end[..20])),
        (ResultFormat::JsonLines, end[..20].to_owned()),
        (ResultFormat::JsonLines, end.replace("failed", "more")),
        (ResultFormat::Json, format!("[{end}")),
    ] {
        assert_eq!(read(format, &body), 0, "{body}");
    }
}

#[test]
fn bounds_bytes_that_are_no_result() {
    for (format, filler) in [
        (ResultFormat::EventStream, ": x\n"),
        (ResultFormat::EventStream, "\n"),
        (ResultFormat::EventStream, "x: y\n"),
        (ResultFormat::JsonLines, "\n"),
    ] {
        let mut reader = ResultReader::new(format, 32, LIMITS);
        let mut items = Vec::new();
        let mut pushed = 0;
        let outcome = loop {
            pushed += filler.len();
            if let Err(error) = reader.push(filler.as_bytes(), &mut items) {
                break error;
            }
        };
        assert_eq!(outcome, TooLarge::Other);
        assert!((129..133).contains(&pushed), "{pushed}");
        assert!(items.len() <= 1, "{filler:?}: {items:?}");
    }
}
