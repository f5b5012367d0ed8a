// What the scale is measured by, and the random numbers it is measured on. Definitions are those of `qkv explain
// --no-scale`: variance with n - 1, the entropy of a row of weights in nats, softmax's gradient Σ p (1 - p); the last two
// are means over rows.

/** Numbers from [0, 1), the same for a seed on every machine: a counter, mixed by MurmurHash3's last steps. */
function uniformNumbers(seed) {
  let counter = seed * 1000003;
  return () => {
    counter = (counter + 0x9e3779b9) >>> 0;
    let bits = counter;
    bits = Math.imul(bits ^ (bits >>> 16), 0x85ebca6b);
    bits = Math.imul(bits ^ (bits >>> 13), 0xc2b2ae35);
    return ((bits ^ (bits >>> 16)) >>> 0) / 2 ** 32;
  };
}

const drawnRows = (rows, columns, draw) => Array.from({ length: rows }, () => Array.from({ length: columns }, draw));
const uniformRows = (rows, columns, seed) => drawnRows(rows, columns, uniformNumbers(seed));

/** Rows of normal numbers of mean 0 and variance 1, by Box and Muller. */
function normalRows(rows, columns, seed) {
  const uniform = uniformNumbers(seed);
  return drawnRows(rows, columns, () => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform()));
}

/** Of the finite numbers; 0 for fewer than two. */
function varianceOf(numbers) {
  const finite = numbers.filter(Number.isFinite);
  const mean = finite.reduce((sum, x) => sum + x, 0) / finite.length;
  const squares = finite.reduce((sum, x) => sum + (x - mean) * (x - mean), 0);
  return finite.length > 1 ? squares / (finite.length - 1) : 0;
}

const entropyOf = (weights) => weights.reduce((sum, p) => (p > 0 ? sum - p * Math.log(p) : sum), 0);
const gradientOf = (weights) => weights.reduce((sum, p) => sum + p * (1 - p), 0);

/** Softmax in f64, for measuring. */
function plainSoftmax(scores) {
  const largest = Math.max(...scores);
  const powers = scores.map((score) => (score === -Infinity ? 0 : Math.exp(score - largest)));
  const sum = powers.reduce((total, power) => total + power, 0);
  return powers.map((power) => (sum > 0 ? power / sum : 0));
}

/** `{variance, entropy, gradient}` of scores that go into softmax; hidden ones are -∞. Rows that attend nothing do not count. */
function measureRows(masked, weights = masked.map(plainSoftmax)) {
  const attending = weights.filter((row) => row.some((p) => p !== 0));
  const mean = (of) => attending.reduce((sum, row) => sum + of(row), 0) / Math.max(attending.length, 1);
  return { variance: varianceOf(masked.flat()), entropy: mean(entropyOf), gradient: mean(gradientOf) };
}

export { uniformRows, normalRows, entropyOf, plainSoftmax, measureRows };
