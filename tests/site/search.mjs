// Answers of the built site's search: its own worker, run by node over its own index.
//
// node search.mjs SITE QUERY... prints one JSON object: for each query the sections found, as the page shows them: page
// by page, and in each the sections in their order.

import fs from "node:fs";
import path from "node:path";
import vm from "node:vm";

const [site, ...queries] = process.argv.slice(2);
const folder = path.join(site, "assets/javascripts/workers");
const [worker] = fs.readdirSync(folder).filter(name => /^search\..*\.js$/.test(name));
let listen, answered;
const context = vm.createContext({
  addEventListener: (_, listener) => { listen = listener; },
  postMessage: message => answered(message),
  console,
});
context.self = context;
vm.runInContext(fs.readFileSync(path.join(folder, worker), "utf8"), context);

// The worker answers each message by one of its own: 0 is followed by 1, 2 by 3.
function ask(type, data) {
  return new Promise(resolve => {
    answered = message => resolve(message.data);
    listen({ data: { type, data } });
  });
}

const index = JSON.parse(fs.readFileSync(path.join(site, "search/search_index.json"), "utf8"));
await ask(0, { ...index, options: { suggest: false } });
const found = {};
for (const query of queries) {
  const { items } = await ask(2, query);
  found[query] = items.map(page => page.map(section => section.location));
}
console.log(JSON.stringify(found));
