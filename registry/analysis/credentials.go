package analysis

import (
	"fmt"

	networking "istio.io/api/networking/v1alpha3"
)

// unusedCredentials names the DestinationRules with a credential that sidecars do not use: without a
// workloadSelector it is for gateways, as in Istio, and sidecars send what the application sends.
func unusedCredentials(w *meshIndex, r *report) {
	severity := Warning
	for range specs[*networking.Gateway](w) {
		severity = Info // it may be meant for gateways
		break
	}
	for o, spec := range specs[*networking.DestinationRule](w) {
		if spec.GetWorkloadSelector() != nil {
			continue
		}
		field := credentialField(spec)
		if field == "" {
			continue
		}
		r.add(place{o, field}, severity, fmt.Sprintf("only gateways use this credential: sidecars have no TLS settings for %s, and send in plaintext what the application sends in plaintext; "+
			"write a workloadSelector for the workloads that have the credential, or let them call through an egress gateway", spec.GetHost()))
	}
}

// credentialField is the path of the first credential of a rule by which TLS is begun; or empty.
func credentialField(spec *networking.DestinationRule) string {
	names := func(t *networking.ClientTLSSettings) bool {
		return t.GetCredentialName() != "" && (t.GetMode() == networking.ClientTLSSettings_SIMPLE || t.GetMode() == networking.ClientTLSSettings_MUTUAL)
	}
	in := func(p *networking.TrafficPolicy, at string) string {
		if names(p.GetTls()) {
			return at + ".tls.credentialName"
		}
		for i, s := range p.GetPortLevelSettings() {
			if names(s.GetTls()) {
				return fmt.Sprintf("%s.portLevelSettings[%d].tls.credentialName", at, i)
			}
		}
		return ""
	}
	if field := in(spec.GetTrafficPolicy(), "spec.trafficPolicy"); field != "" {
		return field
	}
	for i, s := range spec.GetSubsets() {
		if field := in(s.GetTrafficPolicy(), fmt.Sprintf("spec.subsets[%d].trafficPolicy", i)); field != "" {
			return field
		}
	}
	return ""
}
