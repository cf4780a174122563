//! Knowledge bases: document ingest and passage retrieval, on both databases and over a remote API.

#[path = "knowledge/budgets.rs"]
mod budgets;
#[path = "knowledge/remote.rs"]
mod remote;

use std::collections::BTreeMap;

use reqwest::Method;
use reqwest::header::CONTENT_TYPE;
use rstest::rstest;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::client::{ApiResponse, Client, message, send};
use crate::support::database::rows;
use crate::support::gateway::{Agent, Config};
use crate::support::held::HeldRun;
use crate::support::runner::{RUNNER_ID, StubRunner, manifest};
use crate::support::slow::connect;
use crate::support::terminal::PseudoTerminal;
use crate::support::{Engine, OwnStage, Postgres, Sqlite, Stage, TempDirectory, until, within};

const BASES: &str = r#"
[[knowledge_bases]]
kb_id = "handbook"
kb_name = "The handbook"
chunk_chars = 200
chunk_overlap = 40
[[knowledge_bases]]
kb_id = "archive"
operations = ["list"]
[[knowledge_bases]]
kb_id = "attic"
operations = ["retrieve"]
"#;

/// A runner that may list and search knowledge bases; its configuration selects them.
fn searching_manifest() -> Value {
    let mut manifest = manifest(RUNNER_ID);
    manifest["capabilities"]["knowledge_retrieval"] = json!(true);
    manifest["permissions"] = json!({"knowledge_bases": ["list", "retrieve"]});
    manifest
}

async fn stage_with(engine: Engine, configure: impl FnOnce(&mut Config)) -> Option<OwnStage> {
    let runner = StubRunner::start_as(searching_manifest()).await;
    OwnStage::of(engine, runner, |config: &mut Config| {
        BASES.clone_into(&mut config.rest);
        config.agents[0].resources = r#"knowledge_bases = ["handbook", "archive"]"#;
        configure(config);
    })
    .await
}

async fn stage(engine: Engine) -> Option<OwnStage> {
    stage_with(engine, |_| {}).await
}

const GUIDE: &str = "# Guide\n\nWelcome to the company.\n\n## Vacation\n\nEvery employee has thirty days of vacation \
    a year. Ask your manager before you book a flight.\n\n## Office hours\n\nThe office is open from nine to five. \
    On Fridays it closes at three, and the bar opens.\n";
const PAGE: &str = "<html><head><style>.x{}</style><script>var vacation = 'script';</script></head><body>\
    <h1>Parking</h1><p>The garage under the house is free for <b>visitors</b>.</p></body></html>";
const CHINESE: &str = "公司手册。员工每年有三十天的年假。请提前两周向经理申请。\n\n办公室的开放时间是早上九点到下午五点。";
const JAPANESE: &str =
    "社員は年に三十日の有給休暇を取得できます。\n\n東京事務所の営業時間は九時から五時までです。";

/// A PDF with one line a page.
fn pdf(pages: &[&str]) -> Vec<u8> {
    let mut objects = vec!["<< /Type /Catalog /Pages 2 0 R >>".to_owned()];
    let kids: Vec<_> = (0..pages.len())
        .map(|n| format!("{} 0 R", 4 + 2 * n))
        .collect();
    objects.push(format!(
        "<< /Type /Pages /Kids [{}] /Count {} >>",
        kids.join(" "),
        pages.len()
    ));
    objects.push(
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>"
            .to_owned(),
    );
    for (n, text) in pages.iter().enumerate() {
        objects.push(format!(
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {} 0 R \
             /Resources << /Font << /F1 3 0 R >> >> >>",
            5 + 2 * n
        ));
        let drawn = format!("BT /F1 12 Tf 72 720 Td ({text}) Tj ET");
        objects.push(format!(
            "<< /Length {} >>\nstream\n{drawn}\nendstream",
            drawn.len()
        ));
    }
    let mut bytes = b"%PDF-1.4\n".to_vec();
    let mut positions = Vec::new();
    for (n, object) in objects.iter().enumerate() {
        positions.push(bytes.len());
        bytes.extend(format!("{} 0 obj\n{object}\nendobj\n", n + 1).bytes());
    }
    let at = bytes.len();
    bytes.extend(format!("xref\n0 {}\n0000000000 65535 f \n", positions.len() + 1).bytes());
    for position in &positions {
        bytes.extend(format!("{position:010} 00000 n \n").bytes());
    }
    let size = positions.len() + 1;
    bytes.extend(
        format!("trailer\n<< /Size {size} /Root 1 0 R >>\nstartxref\n{at}\n%%EOF\n").bytes(),
    );
    bytes
}

async fn put(
    admin: &Client,
    id: &str,
    media_type: &str,
    bytes: impl Into<reqwest::Body>,
) -> ApiResponse {
    let path = format!("/v1/knowledge-bases/handbook/documents/{id}");
    let request = admin
        .request(Method::PUT, &path)
        .header(CONTENT_TYPE, media_type);
    send(request.body(bytes)).await.unwrap()
}

/// Uploads one document of each media type.
async fn fill(admin: &Client) {
    let gbk = b"\xcc\xec\xc6\xf8\xba\xdc\xba\xc3\xa1\xa3".to_vec();
    for (id, media_type, bytes) in [
        (
            "guide.md?metadata={\"lang\":\"en\",\"year\":2026}",
            "text/markdown",
            GUIDE.as_bytes().to_vec(),
        ),
        (
            "parking.html?metadata={\"lang\":\"en\",\"tags\":[\"car\",\"house\"]}",
            "text/html; charset=utf-8",
            PAGE.into(),
        ),
        (
            "zh.txt?name=手册&metadata={\"lang\":\"zh\"}",
            "text/plain",
            CHINESE.into(),
        ),
        (
            "ja.txt?metadata={\"lang\":\"ja\"}",
            "text/plain; charset=utf-8",
            JAPANESE.into(),
        ),
        ("weather/gbk.txt", "text/plain; charset=gbk", gbk),
        (
            "refunds.pdf",
            // The media type comes from the name.
            "application/octet-stream",
            pdf(&[
                "Refunds are paid within fourteen days.",
                "Complaints go to the second floor.",
            ]),
        ),
    ] {
        let made = put(admin, id, media_type, bytes).await;
        assert_eq!(made.status, 201, "{id}: {}", made.body);
        assert_eq!(made.body["status"], "ready", "{}", made.body);
        assert_eq!(made.body["searchable"], true, "{}", made.body);
    }
}

async fn search(client: &Client, body: Value) -> Vec<Value> {
    let path = "/v1/knowledge-bases/handbook/retrieve";
    let answer = client.call(Method::POST, path, &body).await.expect(200);
    answer.body["results"].as_array().unwrap().clone()
}

fn text_of(entry: &Value) -> &str {
    entry["content"][0]["text"].as_str().unwrap()
}

/// Each query with the document and the words that answer it.
const QUESTIONS: &[(&str, &str, &str)] = &[
    (
        "How many vacation days does an employee have?",
        "guide.md",
        "thirty days",
    ),
    (
        "when do the offices close on friday",
        "guide.md",
        "closes at three",
    ),
    (
        "visitor parking garage",
        "parking.html",
        "free for visitors",
    ),
    ("年假有多少天", "zh.txt", "三十天的年假"),
    ("办公室什么时候开放", "zh.txt", "开放时间"),
    ("有給休暇は何日", "ja.txt", "有給休暇"),
    ("東京事務所の営業時間", "ja.txt", "九時から"),
    ("天气", "weather/gbk.txt", "天气很好"),
    ("refund", "refunds.pdf", "fourteen days"),
    ("complaints floor", "refunds.pdf", "second floor"),
];

#[rstest]
#[tokio::test]
async fn finds_documents_of_every_type_until_deleted(#[values(Sqlite, Postgres)] engine: Engine) {
    let mut stage = or_skip!(stage(engine).await);
    let admin = stage.admin.clone();
    fill(&admin).await;
    let run = HeldRun::start(&stage, &message("m-1")).await;
    for (question, document, words) in QUESTIONS {
        let answer = run
            .call(
                "/knowledge-bases/handbook/retrieve",
                &json!({"query_text": question, "top_k": 3}),
            )
            .await;
        assert_eq!(answer.status, 200, "{question}: {}", answer.body);
        let found = answer.body["results"].as_array().unwrap();
        let first = found
            .first()
            .unwrap_or_else(|| panic!("{question} finds nothing"));
        assert_eq!(
            first["metadata"]["document_id"], *document,
            "{question}: {found:#?}"
        );
        assert!(text_of(first).contains(words), "{question}: {first}");
        let (score, distance) = (
            first["score"].as_f64().unwrap(),
            first["distance"].as_f64().unwrap(),
        );
        assert!(
            score > 0.0 && score <= 1.0 && (score + distance - 1.0).abs() < 1e-9,
            "{first}"
        );
        let scores: Vec<_> = found
            .iter()
            .map(|one| one["score"].as_f64().unwrap())
            .collect();
        assert!(scores.is_sorted_by(|one, other| one >= other), "{scores:?}");
    }
    // The offsets point to the passage.
    let found = search(&admin, json!({"query_text": "vacation manager flight"})).await;
    let metadata = &found[0]["metadata"];
    let (start, end) = (
        metadata["start"].as_u64().unwrap(),
        metadata["end"].as_u64().unwrap(),
    );
    let letters: Vec<char> = GUIDE.chars().collect();
    let slice: String = letters[usize::try_from(start).unwrap()..usize::try_from(end).unwrap()]
        .iter()
        .collect();
    assert_eq!(slice, text_of(&found[0]));
    assert_eq!(metadata["heading"], "Guide > Vacation", "{metadata}");
    assert_members!(metadata, {"lang": "en", "year": 2026});
    let found = search(&admin, json!({"query_text": "complaints"})).await;
    assert_eq!(found[0]["metadata"]["heading"], "Page 2");
    assert_eq!(
        search(&admin, json!({"query_text": "手册"})).await[0]["metadata"]["source"],
        "手册"
    );
    assert_eq!(
        search(&admin, json!({"query_text": "script"})).await,
        Vec::<Value>::new()
    );

    // The same document again is a no-op; a new version replaces the old one.
    let again = put(
        &admin,
        "zh.txt?name=手册&metadata={\"lang\":\"zh\"}",
        "text/plain",
        CHINESE,
    )
    .await;
    again.assert_body(200, "status", "ready");
    put(
        &admin,
        "refunds.pdf",
        "text/plain",
        "Refunds are not paid at all.",
    )
    .await
    .expect(200);
    let found = search(&admin, json!({"query_text": "refunds paid complaints"})).await;
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_eq!(text_of(&found[0]), "Refunds are not paid at all.");

    stage.gateway.kill().await;
    stage.gateway.restart().await;
    let admin = stage.admin.clone();
    let found = search(&admin, json!({"query_text": "refunds paid complaints"})).await;
    assert_eq!(text_of(&found[0]), "Refunds are not paid at all.");
    let path = "/v1/knowledge-bases/handbook/documents";
    admin
        .delete(&format!("{path}/refunds.pdf"))
        .await
        .expect(204);
    admin
        .delete(&format!("{path}/refunds.pdf"))
        .await
        .expect(404);
    assert_eq!(admin.get(&format!("{path}/refunds.pdf")).await.status, 404);
    assert_eq!(
        search(&admin, json!({"query_text": "refunds"})).await,
        Vec::<Value>::new()
    );
    // Pages of two documents, ordered by id.
    let (mut ids, mut next) = (Vec::new(), String::new());
    loop {
        let page = admin.get(&format!("{path}?limit=2{next}")).await.body;
        ids.extend(
            page["items"]
                .as_array()
                .unwrap()
                .iter()
                .map(|one| one["document_id"].clone()),
        );
        match page["next_cursor"].as_str() {
            Some(cursor) => next = format!("&cursor={cursor}"),
            None => break,
        }
    }
    assert_eq!(
        ids,
        [
            "guide.md",
            "ja.txt",
            "parking.html",
            "weather/gbk.txt",
            "zh.txt"
        ]
    );
    // Content without a document is deleted.
    until("only what is searched is kept", async || {
        let sql = "SELECT CAST((SELECT COUNT(*) FROM knowledge_garbage) \
            + (SELECT COUNT(*) FROM knowledge_chunks WHERE id / 32768 NOT IN (SELECT content FROM knowledge_documents)) \
            + (SELECT COUNT(*) FROM knowledge_metadata WHERE content NOT IN (SELECT content FROM knowledge_documents)) AS TEXT) AS n";
        rows(&stage.gateway.database_url(), sql).await == ["0"]
    })
    .await;
}

/// Search results in order, with all their metadata.
async fn everything_found(engine: Engine) -> Option<BTreeMap<String, Vec<Value>>> {
    let stage = stage(engine).await?;
    let admin = stage.admin.clone();
    fill(&admin).await;
    for n in 0..40 {
        let text = format!(
            "Report {n}. The office of department {} has {} employees. 部门{n}的年假是{}天。",
            n % 7,
            n * 3 % 11,
            n % 5
        );
        put(&admin, &format!("reports/{n}.txt"), "text/plain", text)
            .await
            .expect(201);
    }
    let mut all = BTreeMap::new();
    let others = [
        "office department employees",
        "部门年假",
        "report 7",
        "the",
        "opens",
    ];
    for question in QUESTIONS
        .iter()
        .map(|(question, ..)| *question)
        .chain(others)
    {
        let found = search(&admin, json!({"query_text": question, "top_k": 50})).await;
        assert!(!found.is_empty(), "{question}");
        all.insert(question.to_owned(), found);
    }
    Some(all)
}

#[tokio::test]
async fn search_results_are_equal_on_both_databases() {
    let on_postgres = or_skip!(everything_found(Postgres).await);
    let on_sqlite = everything_found(Sqlite).await.unwrap();
    assert_eq!(on_sqlite, on_postgres);
}

#[rstest]
#[tokio::test]
async fn filters_results_and_rejects_invalid_queries_by_pointer(
    #[values(Sqlite, Postgres)] engine: Engine,
) {
    let stage = or_skip!(stage(engine).await);
    let admin = stage.admin.clone();
    fill(&admin).await;
    for (filters, documents) in [
        (
            json!({}),
            vec!["guide.md", "ja.txt", "parking.html", "zh.txt"],
        ),
        (json!({"lang": "en"}), vec!["guide.md", "parking.html"]),
        (json!({"lang": ["zh", "ja"]}), vec!["ja.txt", "zh.txt"]),
        (json!({"lang": {"$in": ["zh", "nothing"]}}), vec!["zh.txt"]),
        (json!({"lang": "en", "tags": "house"}), vec!["parking.html"]),
        (json!({"year": 2026}), vec!["guide.md"]),
        (json!({"year": "2026"}), vec![]),
        (
            json!({"document_id": ["zh.txt", "guide.md"]}),
            vec!["guide.md", "zh.txt"],
        ),
        (json!({"name": "手册"}), vec!["zh.txt"]),
        (json!({"mime_type": "text/markdown"}), vec!["guide.md"]),
        (json!({"lang": "en' OR '1'='1"}), vec![]),
    ] {
        let query =
            json!({"query_text": "office garage 办公室 事務所", "top_k": 50, "filters": filters});
        let found = search(&admin, query).await;
        let mut passages: Vec<_> = found
            .iter()
            .map(|one| one["metadata"]["document_id"].as_str().unwrap())
            .collect();
        passages.sort_unstable();
        passages.dedup();
        assert_eq!(passages, documents, "{filters}");
    }
    let run = HeldRun::start(&stage, &message("m-1")).await;
    for (body, pointer) in [
        (json!({}), "/query_text"),
        (json!({"query_text": " "}), "/query_text"),
        (json!({"query_text": "x".repeat(8193)}), "/query_text"),
        (json!({"query_text": "x", "top_k": 0}), "/top_k"),
        (json!({"query_text": "x", "top_k": 51}), "/top_k"),
        (
            json!({"query_text": "x", "filters": {"a": {"$gt": 1}}}),
            "/filters/a",
        ),
        (
            json!({"query_text": "x", "filters": {"a": []}}),
            "/filters/a",
        ),
        (json!({"query_text": "x", "filters": []}), "/filters"),
        (json!({"query_text": "x", "rank": 1}), "/rank"),
    ] {
        let refused = run.call("/knowledge-bases/handbook/retrieve", &body).await;
        assert_eq!(refused.status, 400, "{body}: {}", refused.body);
        assert_eq!(refused.detail("pointer"), pointer, "{}", refused.body);
    }
    for query in [
        "?!",
        "\"",
        "%",
        "a & b | !c",
        "NEAR(x)",
        "'; DROP TABLE x",
        "\u{10ffff}",
    ] {
        let body = json!({"query_text": query});
        let answer = run.call("/knowledge-bases/handbook/retrieve", &body).await;
        assert_eq!(answer.status, 200, "{query}: {}", answer.body);
    }
    run.end(&stage).await;
}

#[tokio::test]
async fn searches_only_bases_granted_by_every_layer() {
    let mut narrow = searching_manifest();
    narrow["config_schema"] =
        json!([{"type": "knowledge-base-multi-selector", "name": "knowledge-bases"}]);
    narrow["permissions"] = json!({"knowledge_bases": ["list", "retrieve"]});
    let mut listing = manifest("plugin:test/stub/listing");
    listing["permissions"] = json!({"knowledge_bases": ["list"]});
    let mut manifests = json!([narrow]);
    listing["name"] = json!("listing");
    manifests.as_array_mut().unwrap().push(listing);
    let runner = StubRunner::start_listing(manifests).await;
    let staged = Stage::of(Sqlite, runner, |config: &mut Config| {
        BASES.clone_into(&mut config.rest);
        // No selector in the configuration selects a base.
        config.agents[0].resources = r#"knowledge_bases = "*""#;
        config.agents.push(Agent {
            name: "listing",
            event_types: "test.listing",
            runner_id: "plugin:test/stub/listing",
            resources: r#"knowledge_bases = "*""#,
            ..Agent::default()
        });
    });
    let stage = staged.await.unwrap();
    let admin = stage.admin.clone();
    let agent = json!({
        "name": "picks", "event_types": ["test.picks"], "runner_id": RUNNER_ID,
        "config": {"knowledge-bases": ["handbook", "archive"]},
        "resource_policy": {"knowledge_bases": ["handbook", "archive", "attic"]},
    });
    admin.create("/v1/agents", &agent).await.expect(201);
    fill(&admin).await;
    let of_type = |event_id: &str, event_type: &str| {
        let mut event = message(event_id);
        event["event_type"] = json!(event_type);
        event["conversation"]["conversation_id"] = json!(event_id);
        event
    };
    let picks = HeldRun::start(&stage, &of_type("m-1", "test.picks")).await;
    let listed = picks.get("/knowledge-bases").await.expect(200);
    let bases = listed.body["knowledge_bases"].as_array().unwrap();
    let ids: Vec<_> = bases.iter().map(|base| base["kb_id"].clone()).collect();
    assert_eq!(ids, ["handbook", "archive"]);
    assert_eq!(bases[0]["kb_type"], "embedded");
    let query = json!({"query_text": "vacation"});
    let retrieve = async |run: &HeldRun, kb: &str| {
        run.call(&format!("/knowledge-bases/{kb}/retrieve"), &query)
            .await
    };
    assert_eq!(retrieve(&picks, "handbook").await.status, 200);
    let nobody = retrieve(&picks, "nobody").await;
    for kb in ["archive", "attic"] {
        let refused = retrieve(&picks, kb).await;
        assert_eq!((refused.status, &refused.body), (403, &nobody.body), "{kb}");
    }
    let path = format!("/v1/runs/{}/audit?limit=100", picks.run_id);
    until("every call is on record", async || {
        let audit = stage.client.get(&path).await.body;
        let entries = audit["items"].as_array().unwrap().clone();
        let audited = |resource: &str, decision: &str| {
            entries.iter().any(|entry| {
                entry["action"] == "retrieve_knowledge_base"
                    && entry["resource"] == resource
                    && entry["decision"] == decision
            })
        };
        audited("handbook", "allow") && audited("attic", "deny") && audited("nobody", "deny")
    })
    .await;

    // The manifest lacks `retrieve`, so no policy can grant it.
    let listing = HeldRun::start(&stage, &of_type("m-2", "test.listing")).await;
    assert_eq!(listing.get("/knowledge-bases").await.status, 200);
    assert_eq!(retrieve(&listing, "handbook").await.status, 403);
    let bare = HeldRun::start(&stage, &of_type("m-3", "message.received")).await;
    assert_eq!(retrieve(&bare, "handbook").await.status, 403);
    assert_eq!(bare.get("/knowledge-bases").await.status, 403);
    for run in [picks, listing, bare] {
        run.end(&stage).await;
    }
}

#[rstest]
#[tokio::test]
async fn unreadable_upload_keeps_previous_document(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let admin = stage.admin.clone();
    put(&admin, "a", "text/plain", "The first reading.")
        .await
        .expect(201);
    let nested = format!("<html>{}", "<div>".repeat(5_000));
    let bomb = "<table>".repeat(300) + &"<td colspan=1000>x".repeat(1_000);
    for (media_type, bytes, why) in [
        (
            "application/pdf",
            b"%PDF-1.7 nothing at all".to_vec(),
            "PDF",
        ),
        ("text/plain", b"\xff\xfe\xff".to_vec(), "UTF-16"),
        ("text/plain", b"\x80abc".to_vec(), "UTF-8"),
        ("text/plain", b" \n\n ".to_vec(), "no text"),
        ("application/zip", b"PK".to_vec(), "kind"),
        ("application/octet-stream", b"x".to_vec(), "extension"),
        ("text/plain; charset=klingon", b"x".to_vec(), "charset"),
        ("text/html", nested.into_bytes(), ""),
        ("text/html", bomb.into_bytes(), ""),
    ] {
        let refused = put(&admin, "a", media_type, bytes).await;
        // A document that the parser accepts is stored.
        if why.is_empty() && refused.status == 200 {
            put(&admin, "a", "text/plain", "The first reading.")
                .await
                .expect(200);
            continue;
        }
        assert_eq!(refused.status, 400, "{media_type}: {}", refused.body);
        assert_eq!(refused.error("code"), "invalid_argument");
        let message = refused.error("message").as_str().unwrap();
        assert!(message.contains(why), "{message}");
        let found = search(&admin, json!({"query_text": "reading"})).await;
        assert_eq!(text_of(&found[0]), "The first reading.");
    }
    let failed = put(&admin, "b", "application/pdf", "no").await;
    assert_eq!(failed.status, 400);
    let record = admin
        .get("/v1/knowledge-bases/handbook/documents/b")
        .await
        .body;
    assert_members!(record, {"status": "failed", "searchable": false});
    assert_contains!(record["error"].as_str().unwrap(), "PDF");
    let path = "/v1/knowledge-bases/handbook/documents/large";
    let large = admin
        .request(Method::PUT, path)
        .header(CONTENT_TYPE, "text/plain");
    // A connection reset during the upload also counts as a rejection.
    if let Ok(answer) = send(large.body("x".repeat(20 * 1024 * 1024 + 1))).await {
        assert_eq!(answer.status, 413, "{}", answer.body);
    }
    for path in [
        "handbook/documents/%00",
        "handbook/documents/a?metadata={\"document_id\":1}",
        "handbook/documents/a?metadata=[]",
        "handbook/documents/a?metadata={\"a\":{\"b\":1}}",
        "handbook/documents/a?name=",
        "handbook/documents/a?nome=x",
    ] {
        let path = format!("/v1/knowledge-bases/{path}");
        let request = admin
            .request(Method::PUT, &path)
            .header(CONTENT_TYPE, "text/plain");
        let refused = send(request.body("x")).await.unwrap();
        assert_eq!(refused.status, 400, "{path}: {}", refused.body);
    }
    let long = put(&admin, &"i".repeat(256), "text/plain", "x").await;
    assert_eq!(long.status, 400, "{}", long.body);
    let gone = admin.get("/v1/knowledge-bases/nobody/documents").await;
    assert_eq!(gone.status, 404, "{}", gone.body);
}

/// As many as the concurrency limit of indexing, and one more.
#[tokio::test]
async fn slow_uploads_do_not_block_indexing() {
    let stage = stage(Sqlite).await.unwrap();
    let admin = stage.admin.clone();
    let mut slow = Vec::new();
    for n in 0..3 {
        let mut upload = connect(&admin.url).await;
        let head = format!(
            "PUT /v1/knowledge-bases/handbook/documents/slow-{n} HTTP/1.1\r\nhost: localhost\r\n\
             authorization: Bearer {}\r\ncontent-type: text/plain\r\ncontent-length: 100000\r\n\
             expect: 100-continue\r\n\r\n",
            admin.key
        );
        upload.write_all(head.as_bytes()).await.unwrap();
        let mut counts = [0; 12];
        let read = upload.read_exact(&mut counts);
        within("the body to be wanted", read).await.unwrap();
        assert_eq!(&counts, b"HTTP/1.1 100");
        slow.push(upload);
    }
    let quick = put(&admin, "quick", "text/plain", "At once.").await;
    assert_eq!(quick.status, 201, "{}", quick.body);
}

#[rstest]
#[tokio::test]
async fn rebuilds_lost_index_from_stored_chunks(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let admin = stage.admin.clone();
    fill(&admin).await;
    let long = "A long text about bicycles. ".repeat(100);
    put(&admin, "long.txt", "text/plain", long)
        .await
        .expect(201);
    let everything = async || {
        let mut all = Vec::new();
        for query in ["vacation", "bicycles", "年假", "有給休暇", "complaints"] {
            all.push(search(&admin, json!({"query_text": query, "top_k": 50})).await);
        }
        all
    };
    let before = everything().await;
    assert!(before.iter().all(|found| !found.is_empty()));
    rows(&stage.gateway.database_url(), "DELETE FROM knowledge_terms").await;
    assert!(everything().await.iter().all(Vec::is_empty));
    let (mut done, mut next) = (0, String::new());
    loop {
        let path = format!("/v1/knowledge-bases/handbook/reindex{next}");
        let answer = admin.call(Method::POST, &path, &json!({})).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        let documents = answer.body["documents"].as_array().unwrap();
        assert!(
            documents.iter().all(|one| one["status"] == "ready"),
            "{}",
            answer.body
        );
        done += documents.len();
        match answer.body["next_cursor"].as_str() {
            Some(cursor) => next = format!("?cursor={cursor}"),
            None => break,
        }
    }
    assert_eq!(done, 7);
    assert_eq!(everything().await, before);
}

#[rstest]
#[tokio::test]
async fn long_queries_match_by_rarest_words(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let admin = stage.admin.clone();
    let texts = |n: usize| {
        format!(
            "Thank you very much for the kind letter number {n} about the office, the team and the week."
        )
    };
    for n in 0..16 {
        let text = match n {
            9 => "The espresso machine is descaled every March.".to_owned(),
            12 => "咖啡机每年三月除垢。".to_owned(),
            _ => texts(n),
        };
        let made = put(&admin, &format!("d-{n}"), "text/plain", text).await;
        assert_eq!(made.status, 201, "{}", made.body);
    }
    let polite = "thank you very much for the letter about the team, and the week, and the office, dear Sir, ";
    let words: Vec<_> = (0..120)
        .map(|n| format!("weather{n} holiday{n} "))
        .collect();
    let mail = words.concat();
    let greeting = "您好，非常感谢您上周的来信，我们全家都很高兴，祝您身体健康，工作顺利，万事如意，请允许我再次表示感谢，打扰您了。";
    for (question, document) in [
        (
            polite.repeat(5) + "when is the espresso machine descaled?",
            "d-9",
        ),
        (
            format!("{mail} when is the espresso machine descaled? {mail}"),
            "d-9",
        ),
        (greeting.repeat(3) + "咖啡机什么时候除垢？", "d-12"),
    ] {
        let found = search(&admin, json!({"query_text": question, "top_k": 5})).await;
        let ids: Vec<_> = found
            .iter()
            .map(|one| one["metadata"]["document_id"].clone())
            .collect();
        assert_eq!(ids[0], document, "{ids:?} {question}");
    }
}

#[tokio::test]
async fn reports_unreadable_pages_of_document() {
    let stage = stage(Sqlite).await.unwrap();
    let admin = stage.admin.clone();
    let bytes = pdf(&[
        "Refunds are paid.",
        "Never read.",
        "Complaints go upstairs.",
    ]);
    let offsets = bytes
        .windows(9)
        .enumerate()
        .filter(|(_, window)| *window == b"/MediaBox");
    let second = offsets.map(|(offset, _)| offset).nth(1).unwrap();
    // Malformed page object: the reader panics on it.
    let mut malformed = bytes.clone();
    malformed[second + 7] = b'u';
    let made = put(&admin, "a", "application/pdf", malformed).await;
    made.assert_body(201, "status", "ready");
    let missing = made.body["error"].as_str().unwrap();
    assert!(missing.starts_with("page 2 is not read: "), "{missing}");
    for (question, heading) in [("refunds", "Page 1"), ("complaints", "Page 3")] {
        let found = search(&admin, json!({"query_text": question})).await;
        assert_eq!(found[0]["metadata"]["heading"], heading);
    }
    let path = "/v1/knowledge-bases/handbook/reindex";
    let anew = admin.call(Method::POST, path, &json!({})).await.body;
    assert_eq!(anew["documents"][0]["error"], missing, "{anew}");
    let full_response = put(&admin, "a", "application/pdf", bytes).await.body;
    assert_eq!(full_response["error"], Value::Null, "{full_response}");
}

#[tokio::test]
async fn accepts_encoding_from_api_or_command() {
    let stage = stage(Sqlite).await.unwrap();
    let admin = stage.admin.clone();
    let gbk = b"\xcc\xec\xc6\xf8\xba\xdc\xba\xc3".to_vec();
    let page = [
        b"<html><head><meta charset=\"gbk\"></head><body><p>".to_vec(),
        gbk.clone(),
    ]
    .concat();
    let made = put(&admin, "page.html", "text/html", page).await;
    assert_eq!(made.status, 201, "{}", made.body);
    let directory = TempDirectory::new();
    std::fs::write(directory.file("zh.txt"), &gbk).unwrap();
    directory.write("steer.txt", "espresso \u{1b}]0;title\u{7}\u{9b}2J\u{8}end");
    let kb = |arguments: &[&str]| {
        let mut command = tokio::process::Command::new(crate::support::programs::runnel());
        command.arg("kb").args(arguments);
        command.args(["--url", &admin.url, "--key", &admin.key]);
        command
    };
    let file = |name: &str| directory.file(name).to_str().unwrap().to_owned();
    crate::support::run(&mut kb(&[
        "add",
        "handbook",
        &file("zh.txt"),
        "--charset",
        "gbk",
    ]))
    .await
    .exited(0);
    crate::support::run(&mut kb(&[
        "add",
        "handbook",
        &file("zh.txt"),
        "--charset",
        "klingon",
    ]))
    .await
    .exited(2);
    let found = search(&admin, json!({"query_text": "天气"})).await;
    assert_eq!(found.len(), 2, "{found:?}");

    // Document text must not control the terminal.
    let added = crate::support::run(&mut kb(&["add", "handbook", &file("steer.txt")])).await;
    assert!(added.status.success(), "{added:?}");
    let mut terminal = PseudoTerminal::start(&mut kb(&["search", "handbook", "espresso"]), 200);
    terminal.say("", "end", 1).await;
    let screen = terminal.screen();
    assert!(screen.contains("espresso ]0;title2Jend"), "{screen:?}");
    assert_lacks!(screen, ['\u{1b}', '\u{7}', '\u{9b}', '\u{8}']);
}

/// The command for interactive use, with progress, and for programs.
#[tokio::test]
async fn command_adds_lists_searches_and_removes_documents() {
    let stage = stage(Sqlite).await.unwrap();
    let admin = stage.admin.clone();
    let directory = TempDirectory::new();
    std::fs::create_dir_all(directory.file("docs/deep")).unwrap();
    directory.write("docs/guide.md", GUIDE);
    directory.write("docs/deep/zh.txt", CHINESE);
    directory.write("docs/page.html", PAGE);
    directory.write("docs/.hidden.md", "hidden");
    directory.write("docs/program.exe", "MZ");
    std::fs::write(directory.file("refunds.pdf"), pdf(&["Refunds are paid."])).unwrap();
    let kb = async |arguments: &[&str]| {
        let mut command = tokio::process::Command::new(crate::support::programs::runnel());
        command.arg("kb").args(arguments);
        command.args(["--url", &admin.url, "--key", &admin.key]);
        crate::support::run(&mut command).await
    };
    let (docs, refunds) = (directory.file("docs"), directory.file("refunds.pdf"));
    let added = kb(&[
        "add",
        "handbook",
        docs.to_str().unwrap(),
        refunds.to_str().unwrap(),
        "--metadata",
        "team=hr",
    ])
    .await
    .exited(0);
    assert!(added.stdout.contains("[4/4] refunds.pdf"), "{added:?}");
    let listed = kb(&["list", "handbook", "--json"]).await;
    let ids: Vec<_> = listed
        .stdout
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["document_id"].clone())
        .collect();
    assert_eq!(ids, ["deep/zh.txt", "guide.md", "page.html", "refunds.pdf"]);
    let found = kb(&["search", "handbook", "vacation days", "--filter", "team=hr"]).await;
    assert_contains!(found.stdout, "guide.md › Guide > Vacation");
    assert!(found.stdout.contains("thirty days"), "{found:?}");
    let none = kb(&[
        "search", "handbook", "vacation", "--filter", "team=it", "--json",
    ])
    .await;
    assert_eq!(none.stdout.trim(), r#"{"results":[]}"#);
    let again = kb(&["reindex", "handbook"]).await;
    assert!(
        again.status.success() && again.stdout.lines().count() == 4,
        "{again:?}"
    );
    kb(&["remove", "handbook", "deep/zh.txt"]).await.exited(0);
    let missing = kb(&["remove", "handbook", "deep/zh.txt"]).await.exited(1);
    assert_contains!(missing.stderr, "there is no document");
    directory.write("bad.pdf", "no");
    let bad = kb(&[
        "add",
        "handbook",
        directory.file("bad.pdf").to_str().unwrap(),
    ])
    .await
    .exited(1);
    assert!(bad.stdout.contains("failed"), "{bad:?}");
    assert_eq!(
        kb(&["add", "handbook", "x", "--metadata", "none"])
            .await
            .status
            .code(),
        Some(2)
    );
}

/// A missing embedding provider makes the configuration invalid.
#[tokio::test]
async fn rejects_base_with_unknown_model_at_start() {
    let stage = stage(Sqlite).await.unwrap();
    let directory = TempDirectory::new();
    for (toml, pointer) in [
        (
            "kb_id = 'a'\nembedding_model = 'nobody'",
            "knowledge_bases[0].embedding_model",
        ),
        (
            "kb_id = 'a'\nkb_type = 'builtin'",
            "knowledge_bases[0].kb_type",
        ),
        (
            "kb_id = 'a'\nchunk_chars = 100\nchunk_overlap = 51",
            "knowledge_bases[0].chunk_overlap",
        ),
        (
            "kb_id = 'a'\nbase_url = 'https://x.example'",
            "knowledge_bases[0].base_url",
        ),
        (
            "kb_id = 'a'\nkb_type = 'dify'",
            "knowledge_bases[0].api_key",
        ),
        (
            "kb_id = 'a'\nkb_type = 'dify'\nbase_url = 'http://10.0.0.1'\napi_key = 'env:STUB_API_KEY'\nknowledge_id = 'k'",
            "knowledge_bases[0].base_url",
        ),
    ] {
        let file = directory.write("runnel.toml", &format!("[[knowledge_bases]]\n{toml}\n"));
        let mut command = tokio::process::Command::new(crate::support::programs::runnel());
        command.args(["check-config", "--config", file.to_str().unwrap()]);
        command.env("STUB_API_KEY", "opens-sesame");
        let checked = crate::support::run(&mut command).await;
        assert_eq!(checked.status.code(), Some(1), "{toml}: {checked:?}");
        let output = checked.stdout + &checked.stderr;
        assert!(output.contains(pointer), "{toml}: {output}");
    }
    drop(stage);
}
