// Package programs has the tests of unmodified programs: they call one another by names from DNS and
// by addresses, on hosts of their own, and travel by mTLS, whatever befalls their hosts.
package programs
