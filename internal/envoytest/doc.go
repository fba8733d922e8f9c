// Package envoytest runs real Envoys in tests: it finds the pinned binaries,
// starts them with a bootstrap, and asks their admin interface.
//
// Without a binary a test is skipped with the reason, unless FAIRLEAD_E2E=1 is
// set, as `make test` does: then it fails, so that a missing Envoy cannot hide a
// missing proof. Every process started here ends with its test.
package envoytest
