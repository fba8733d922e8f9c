package envoy

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"

	"github.com/fairlead/fairlead/xds/authz"
	"github.com/fairlead/fairlead/xds/view"
)

const rbacType = "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC"

// discoveredFilter is a filter whose configuration is an extension of its name. There is no
// default configuration, and Envoy waits for the extension without a timeout: it does not
// serve a chain whose rules it does not have.
func discoveredFilter(slot view.Slot) *hcmv3.HttpFilter {
	return &hcmv3.HttpFilter{Name: string(slot), ConfigType: &hcmv3.HttpFilter_ConfigDiscovery{
		ConfigDiscovery: &corev3.ExtensionConfigSource{ConfigSource: ads(), TypeUrls: []string{rbacType}},
	}}
}

// buildExtension makes the configuration of a filter. One without rules has no effect.
func buildExtension(p *view.Extension) (*corev3.TypedExtensionConfig, []Diagnostic) {
	rbac := &rbacv3.RBAC{}
	var diagnostics []Diagnostic
	switch {
	case p.Deny:
		rbac.Rules, rbac.RulesStatPrefix = denyAll(), "unenforced."
	case p.Authorization != nil:
		rules := authz.HTTP(policiesOf(p.Authorization))
		if sets := rules.InOrder(); len(sets) == 1 {
			rbac = sets[0].HTTPFilter()
		} else { // policies of one action give one set: nothing else may open the slot
			rbac.Rules = denyAll()
		}
		diagnostics = untranslated(p.Authorization, rules.Faults)
	}
	return &corev3.TypedExtensionConfig{Name: string(p.Slot), TypedConfig: pack(rbac)}, diagnostics
}
