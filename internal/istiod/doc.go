// Package istiod compares the configuration that Fairlead makes for a proxy with the one that
// real istiod makes of the same manifests.
//
// testdata has golden meshes. Beside each lie recordings of what istiod sends to its proxies,
// made by the command in record, which is a module of its own. Both sides become trees
// ([Config]); [Normalize] rewrites the few forms in which they say one thing in two ways;
// [Compare] pairs what belongs together and lists every leaf that differs. A difference is
// accepted if testdata/differences.yaml ([Accepted]) has it, with the values of both sides and
// the reason.
//
// The package reads no network and imports nothing of Istio.
package istiod
