// Package proxyconfig shows the configuration of a proxy to people: as tables with the columns
// of istioctl, as JSON and as YAML. The configuration is what a server has sent, or Envoy's
// config_dump.
//
// [Types] is the one list of what can be shown: commands, completion, help, errors and the
// API of the server take it from there. Private keys are never shown: of a secret, only what
// is public of its certificates is read at all, and all other JSON is masked.
//
// The package reads and writes what it is given, and asks nobody. It keeps no state; any
// goroutine may call it.
package proxyconfig
