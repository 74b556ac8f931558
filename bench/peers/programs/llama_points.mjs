// llama.cpp computes points: run by bench.peers with node. Arguments: the GGUF file, threads. Reads points as lines of
// JSON and answers with the seconds that each took, as asked.py does.
import {createInterface} from "node:readline";
import {getLlama, LlamaLogLevel} from "node-llama-cpp";

const [file, threads] = process.argv.slice(2);
const llama = await getLlama({gpu: false, build: "never", logLevel: LlamaLogLevel.error});
const model = await llama.loadModel({modelPath: file});
const context = await model.createContext({contextSize: 4096, sequences: 32, threads: Number(threads), batchSize: 2048});
console.log(JSON.stringify({engine: "llama.cpp", version: "node-llama-cpp 3.21.1"}));

let seed = 0n;
const promptOf = (tokens) => {
    const found = [];
    for (let i = 0; i < tokens; ++i) {
        seed = (seed * 6364136223846793005n + 1442695040888963407n) % (1n << 64n);
        found.push(1000 + Number((seed >> 33n) % 30000n));
    }
    return found;
};
const answer = async (prompt, tokens) => {
    const sequence = context.getSequence();
    let made = 0;
    for await (const token of sequence.evaluate(prompt, {temperature: 0, yieldEogToken: true})) if (++made >= tokens) break;
    sequence.dispose();
    return made;
};
for await (const line of createInterface({input: process.stdin})) {
    const asked = JSON.parse(line);
    const prompts = Array.from({length: asked.rows}, () => promptOf(asked.prompt));
    const began = performance.now();
    const made = await Promise.all(prompts.map((prompt) => answer(prompt, asked.tokens)));
    const seconds = (performance.now() - began) / 1000;
    if (made.some((count) => count !== asked.tokens)) throw new Error(`answers of ${made} tokens`);
    console.log(JSON.stringify({seconds}));
}
process.exit(0);
