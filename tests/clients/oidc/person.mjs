// A person at a browser: opens the page of a device flow (argument 1) and signs in with a name (argument 2).
const [page, login] = process.argv.slice(2);
const cookies = new Map();

/** Follows redirects of the provider, with its cookies. */
async function open(url, form) {
  for (let hop = 0; hop < 20; hop += 1) {
    const headers = { cookie: [...cookies].map(([name, value]) => `${name}=${value}`).join("; ") };
    const init = form ? { method: "POST", body: new URLSearchParams(form) } : {};
    const response = await fetch(url, { ...init, headers, redirect: "manual" });
    for (const cookie of response.headers.getSetCookie()) {
      const [, name, value] = /^([^=]+)=([^;]*)/.exec(cookie);
      cookies.set(name, value);
    }
    const next = response.headers.get("location");
    if (!next) return { url, status: response.status, html: await response.text() };
    [url, form] = [new URL(next, url).href, undefined];
  }
  throw new Error("too many redirects");
}

/** Fields of the form of a page, and its address. */
function formOf({ url, html }) {
  const fields = {};
  for (const [input] of html.matchAll(/<input[^>]*>/g)) {
    const name = /name="([^"]*)"/.exec(input)?.[1];
    if (name) fields[name] = /value="([^"]*)"/.exec(input)?.[1] ?? "";
  }
  const action = /action="([^"]*)"/.exec(html)?.[1];
  return { action: new URL(action ?? url, url).href, fields };
}

let current = await open(page);
for (let step = 0; step < 6 && /<form/.test(current.html); step += 1) {
  const { action, fields } = formOf(current);
  if ("login" in fields) Object.assign(fields, { login, password: "x" });
  if ("user_code" in fields && "xsrf" in fields) fields.confirm = "yes";
  current = await open(action, fields);
}
console.log(current.status, current.html.replace(/<[^>]*>/g, " ").replace(/\s+/g, " ").slice(0, 200));
