// Package authorization has the example's test: it does what its README tells people
// to do, on the mesh of the quickstart, and sees what it says they will see.
//
// Nobody imports it. The policies are in policies, the small authorization server in authz.
package authorization
