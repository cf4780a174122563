"""Hooks of Schemathesis for tests/e2e/shapes.rs: the credential of every request, and which statuses each operation gave.

RUNNEL_CREDENTIAL is an API key or a run token; RUNNEL_RENEWAL, for a token, the URL that renews it during the test.
RUNNEL_STATUSES is the file that the statuses are written to.
"""

import atexit
import collections
import json
import os
import urllib.request

import schemathesis

# A token lives fifteen minutes at most.
RENEW_AFTER_SECONDS = 240

credential = os.environ["RUNNEL_CREDENTIAL"]
renewal = os.environ.get("RUNNEL_RENEWAL")
statuses = collections.defaultdict(collections.Counter)


def renewed():
    request = urllib.request.Request(renewal, method="POST", headers={"Authorization": f"Bearer {credential}"})
    with urllib.request.urlopen(request) as response:
        return json.load(response)["token"]


@schemathesis.auth(refresh_interval=RENEW_AFTER_SECONDS)
class Bearer:
    def get(self, case, context):
        global credential
        if renewal:
            credential = renewed()
        return credential

    def set(self, case, data, context):
        case.headers = {**(case.headers or {}), "Authorization": f"Bearer {data}"}


@schemathesis.hook
def before_load_schema(context, raw_schema):
    """Adapts two kinds of answers that the document describes for generated clients.

    The schema of a stream describes the data of an event, and Schemathesis expects the event itself. Bytes of any type
    are documented as one type, so that a client reads bytes.
    """
    for operations in raw_schema["paths"].values():
        for operation in operations.values():
            for answer in operation["responses"].values():
                content = answer.get("content", {})
                if "text/event-stream" in content:
                    content["text/event-stream"] = {}
                if "application/octet-stream" in content:
                    content["*/*"] = content.pop("application/octet-stream")


@schemathesis.hook
def after_call(context, case, response):
    statuses[case.operation.definition.raw["operationId"]][str(response.status_code)] += 1


@atexit.register
def write():
    with open(os.environ["RUNNEL_STATUSES"], "w", encoding="utf-8") as file:
        json.dump(statuses, file)
