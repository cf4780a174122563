"""The official OpenAI client with agents as models: reads {"base_url", "key"}, and resumes a stream after each event."""

import json
import sys

import openai

given = json.load(sys.stdin)
client = openai.OpenAI(base_url=given["base_url"], api_key=given["key"], max_retries=0)


def text_of(events):
    return "".join(event.delta for event in events if event.type == "response.output_text.delta")


response = client.responses.create(model="main", input="a table")
events = list(client.responses.create(model="main", input="a table", stream=True, background=True))
id = events[0].response.id
resumed = []
for at, event in enumerate(events):
    rest = list(client.responses.retrieve(id, stream=True, starting_after=event.sequence_number))
    resumed.append(text_of(events[: at + 1] + rest))
read = client.responses.retrieve(id)
after = client.responses.create(model="main", input="and now?", previous_response_id=id)
cancelled = client.responses.cancel(id)


def refused(**request):
    try:
        client.responses.create(model="main", input="hi", **request)
    except openai.APIStatusError as error:
        return [type(error).__name__, error.status_code, error.code]


json.dump(
    {
        "text": response.output_text,
        "status": response.status,
        "kinds": [item.type for item in response.output],
        "pieces": text_of(events),
        "resumed": resumed[0] if len(set(resumed)) == 1 else resumed,
        "read": read.output_text,
        "is_continued": after.previous_response_id == id,
        "cancelled": cancelled.status,
        "refused": refused(previous_response_id="resp_1"),
    },
    sys.stdout,
)
