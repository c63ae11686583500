// The openai package for node: a whole answer, a stream, one that is given up, and an error.
import assert from "node:assert/strict";
import { createRequire } from "node:module";

const { default: OpenAI } = createRequire(import.meta.url)(process.env.OPENAI_PACKAGE);
const [baseURL, apiKey, prompt, expected] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const body = { model: "tiny", prompt, max_tokens: 16, temperature: 0 };

const whole = await client.completions.create(body);
assert.equal(whole.choices[0].text, expected);

let text = "";
for await (const part of await client.completions.create({ ...body, stream: true })) {
  text += part.choices[0].text;
}
assert.equal(text, expected);

const long = await client.completions.create({ ...body, max_tokens: 300, stream: true });
for await (const part of long) {
  assert.ok(part.choices.length);
  break;
}
long.controller.abort();

await assert.rejects(client.completions.create({ ...body, temperature: -1 }), (error) => {
  assert.equal(error.status, 400);
  assert.equal(error.param, "temperature");
  return true;
});
