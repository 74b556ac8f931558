// Greedy answers of llama.cpp to prompts of token ids, as one line of JSON. Arguments: the GGUF file, tokens per answer.
// Prompts come on stdin.
import {readFileSync} from "node:fs";
import {getLlama, LlamaLogLevel} from "node-llama-cpp";

const [file, count] = process.argv.slice(2);
const llama = await getLlama({gpu: false, build: "never", logLevel: LlamaLogLevel.error});
const model = await llama.loadModel({modelPath: file});
const context = await model.createContext({contextSize: 1024, threads: 2});
const answers = [];
for (const prompt of JSON.parse(readFileSync(0, "utf8"))) {
    const sequence = context.getSequence();
    const answer = [];
    for await (const token of sequence.evaluate(prompt, {temperature: 0})) {
        answer.push(token);
        if (answer.length >= Number(count)) break;
    }
    answers.push(answer);
    sequence.dispose();
}
console.log(JSON.stringify(answers));
process.exit(0);
