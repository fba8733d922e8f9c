// Command peers is a control plane made of the caches of go-control-plane, fed
// with the resources that Fairlead made: what a server costs that generates
// nothing. It is a module of its own, so that what it needs never votes on what
// the product needs.
//
// A line of JSON on its standard input makes it change a resource. It
// answers with the moment at which it began.
package main
