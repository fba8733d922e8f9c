package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// istioVariables maps those of istiod's PILOT_* and other variables that have a
// meaning here to our flags (pilot/pkg/features in Istio). Where the flag is
// empty the variable is refused with the reason. Variables that are not listed
// are refused if they begin with PILOT_, as their owner expects them to do
// something.
func istioVariables() map[string]struct{ flag, reason string } {
	return map[string]struct{ flag, reason string }{
		"PILOT_DEBOUNCE_AFTER":                  {flag: "debounce-after"},
		"PILOT_DEBOUNCE_MAX":                    {flag: "debounce-max"},
		"DEFAULT_WORKLOAD_CERT_TTL":             {flag: "certificate-ttl"},
		"ISTIO_DUAL_STACK":                      {flag: "dual-stack-dns"},
		"PILOT_IP_AUTOALLOCATE_IPV4_PREFIX":     {flag: "address-range"},
		"PILOT_ENABLE_QUIC_LISTENERS":           {flag: "quic-listeners"},
		"PILOT_IP_AUTOALLOCATE_IPV6_PREFIX":     {reason: "addresses of IPv6 are always in 2001:2::/48: delete it"},
		"PILOT_ENABLE_IP_AUTOALLOCATE":          {reason: "hosts without addresses of their own always get some, which only proxies that capture use: delete it"},
		"PILOT_ENABLE_EDS_DEBOUNCE":             {reason: "changes of health, and of single endpoints, are never debounced here: delete it"},
		"PILOT_PUSH_THROTTLE":                   {reason: "a push does not wait for other pushes here: delete it"},
		"PILOT_MAX_REQUESTS_PER_SECOND":         {reason: "new proxies are limited by their number, not by a rate: set --max-new-streams"},
		"PILOT_XDS_CACHE_SIZE":                  {reason: "what a view uses is kept, and nothing else: delete it"},
		"PILOT_SEND_UNHEALTHY_ENDPOINTS":        {reason: "unhealthy endpoints are sent as unhealthy: delete it"},
		"PILOT_ENABLE_XDS_IDENTITY_CHECK":       {reason: "the identity check cannot be turned off: delete it"},
		"XDS_AUTH":                              {reason: "authentication cannot be turned off: delete it"},
		"PILOT_ENABLE_ALPHA_GATEWAY_API":        {reason: "there is no Gateway API here"},
		"PILOT_ENABLE_VIRTUAL_SERVICE_DELEGATE": {reason: "delegates are always in force here: delete it"},
	}
}

// refuseIstioVariable reads a variable of istiod's into our flag, or says why
// it means nothing here. Only the server reads them.
func refuseIstioVariable(cmd *cobra.Command, key, value string) error {
	if cmd.Name() != "server" {
		return nil
	}
	v, listed := istioVariables()[key]
	switch {
	case !listed && !strings.HasPrefix(key, "PILOT_"):
		return nil
	case !listed:
		return fmt.Errorf("environment variable %s: it has no meaning here: delete it", key)
	case v.flag == "":
		return fmt.Errorf("environment variable %s: %s", key, v.reason)
	}
	f := cmd.Flags().Lookup(v.flag)
	if f == nil || f.Changed {
		return nil
	}
	if err := cmd.Flags().Set(v.flag, value); err != nil {
		return fmt.Errorf("environment variable %s: %w", key, err)
	}
	return nil
}
