// Package intentions turns Consul's intentions (service-intentions config entries) into
// AuthorizationPolicies.
//
// It never widens: what has no counterpart denies, and is in the report. [Read] asks Consul for
// all of it or fails, and decodes entries strictly, so that a condition which it does not know is
// an error and not left out. [Convert] is pure. A destination that is not known by name is denied.
//
// The command fairlead consul intentions calls it. There are no goroutines.
package intentions
