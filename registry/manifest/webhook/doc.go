// Package webhook knows the rules that Istio's validating webhook applies to an
// object beyond what its schema says: hosts are well formed, oneof-like fields
// exclude one another, numbers are within their range, a combination makes sense.
//
// It judges one object at a time and always returns every fault, never only the
// first. It does not read YAML, does not know the schema of the CRDs, does not judge
// metadata and never looks at a second object (that is registry/analysis).
//
// registry/manifest calls it with a message that passed the schema walk. The
// verdict (valid or not) is Istio's; the words are ours. There is one file a kind
// and one file for each family of shared checks.
//
// All functions are pure and safe for concurrent use; there are no goroutines.
package webhook
