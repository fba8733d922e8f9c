// Package proxyconfig says how the proxy of one workload is to run: Istio's effective
// ProxyConfig, as the resource that agents get. It is pure and has no goroutines. What of a
// ProxyConfig is in Envoy's own resources is not its business.
package proxyconfig
