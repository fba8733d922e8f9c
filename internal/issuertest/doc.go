// Package issuertest has issuers of tokens for end users (JWT), for tests: they sign, and say
// with which keys.
package issuertest
