package mapping

import (
	"strings"

	"github.com/fairlead/fairlead/registry/metakeys"
)

// What a registration may say of its identity, as metadata or as a tag. It does
// not decide; see [work.agrees].
const (
	metaNamespace = metakeys.ServiceNamespace
	metaAccount   = metakeys.ServiceAccount
	metaTLS       = metakeys.ServiceTLS
	tagTLS        = metakeys.TLSMode
)

// identity gives the service its namespace and account, by rule or by template;
// false where they cannot be.
func (w *serviceMapping) identity() bool {
	w.namespace, w.account = w.rule.Namespace, w.rule.ServiceAccount
	if w.namespace == "" {
		w.namespace = w.m.namespace.fill(&w.values)
	}
	if w.account == "" {
		w.account = w.m.account.fill(&w.values)
	}
	if w.rule.TrustMetadata {
		w.trustNamespace()
	}
	// A rule for one namespace of Consul's says what it is for.
	byRule := (w.rule.Namespace != "" || w.rule.ServiceAccount != "") && !strings.Contains(placeOf(w.rule.Pattern), "*")
	apart := func(home bool, v variable) bool {
		return home || byRule || w.rule.Namespace == "" && w.m.namespace.uses(v) || w.rule.ServiceAccount == "" && w.m.account.uses(v)
	}
	switch {
	case !isDNSLabel(w.namespace):
		w.warn(CodeIdentity, "", "its namespace would be %s, which is none; write a rule with namespace=", sanitize(w.namespace))
	case !isSubdomain(w.account):
		w.warn(CodeIdentity, "", "its service account would be %s, which is none; write a rule with service-account=", sanitize(w.account))
	case isReserved(w.namespace, w.account):
		w.warn(CodeIdentity, "", "its identity would be that of the control plane, %s/%s; write a rule that gives it another", w.namespace, w.account)
	case w.namespace == reservedNamespace && w.rule.Namespace == "" && w.m.namespace.fill(&values{}) != reservedNamespace:
		w.warn(CodeIdentity, "", "its namespace would be %s, whose policies hold for the whole mesh; a rule with namespace= may give it, a name of Consul's may not", reservedNamespace)
	case !apart(w.homeNamespace(), varConsulNamespace), !apart(w.homePartition(), varPartition):
		w.warn(CodeIdentity, "", "the templates of identities do not distinguish %s/%s from other namespaces and partitions of Consul; write {{.ConsulNamespace}} or {{.Partition}} in them",
			sanitizeName(w.partition), sanitizeName(w.consulNamespace))
	default:
		return true
	}
	return false
}

// trustNamespace takes the namespace that all registrations agree on, where a rule
// trusts them.
func (w *serviceMapping) trustNamespace() {
	claimed := ""
	for _, e := range w.in.Entries {
		if e == nil || e.Service == nil || e.Service.Kind != "" || e.Service.Service != w.in.Service {
			continue
		}
		says := claim(e.Service.Meta, e.Service.Tags, metaNamespace)
		if says == "" {
			continue
		}
		if claimed != "" && claimed != says {
			return
		}
		claimed = says
	}
	if isDNSLabel(claimed) && claimed != reservedNamespace {
		w.namespace = claimed
	}
}

// agrees reports whether a registration says nothing else of its identity than
// what it is given.
func (w *serviceMapping) agrees(x *entry) bool {
	namespace := claim(x.service.Meta, x.service.Tags, metaNamespace)
	if namespace != "" && namespace != w.namespace {
		hint := "or trust it by a rule with " + ruleTrust + "=true"
		if w.rule.TrustMetadata {
			hint = "all its instances must name the same"
		}
		w.warn(CodeDisagrees, x.name(), "it says %s=%s, but the service is in namespace %s; correct one of them, %s",
			metaNamespace, sanitize(namespace), w.namespace, hint)
		return false
	}
	account := claim(x.service.Meta, x.service.Tags, metaAccount)
	switch {
	case account == "" || account == w.account:
		return true
	case !w.rule.TrustMetadata:
		w.warn(CodeDisagrees, x.name(), "it says %s=%s, but the service has %s; correct one of them, or trust it by a rule with %s=true",
			metaAccount, sanitize(account), w.account, ruleTrust)
		return false
	case !isSubdomain(account) || isReserved(w.namespace, account):
		w.warn(CodeDisagrees, x.name(), "it says %s=%s, which nobody can be", metaAccount, sanitize(account))
		return false
	default:
		return true
	}
}

// accountOf is the account of an instance that agrees: what it claims is either
// the service's or trusted.
func (w *serviceMapping) accountOf(x *entry) string {
	if account := claim(x.service.Meta, x.service.Tags, metaAccount); account != "" {
		return w.intern(account)
	}
	return w.account
}

// claim is what metadata says under a key or, where it says nothing, a tag.
func claim(meta map[string]string, tags []string, key string) string {
	if v := meta[key]; v != "" {
		return v
	}
	for _, tag := range tags {
		if v, ok := strings.CutPrefix(tag, key); ok && len(v) > 1 && v[0] == '=' {
			return v[1:]
		}
	}
	return ""
}

// takesMTLS reports whether an instance is declared to. A registration may raise
// what the rule says, never lower it.
func (w *serviceMapping) takesMTLS(x *entry) bool {
	if w.rule.TLS == tlsIstio || x.service.Meta[metaTLS] == tlsIstio {
		return true
	}
	for _, key := range []string{metaTLS, tagTLS} {
		if claim(nil, x.service.Tags, key) == tlsIstio {
			return true
		}
	}
	return false
}

// hostOf is the host that alone may speak for an instance: that of its node. A node
// that no host can be called as has none, and then nobody may.
func (w *serviceMapping) hostOf(x *entry) string {
	name := strings.ToLower(x.node.Node)
	if !isSubdomain(name) {
		w.warn(CodeIdentity, x.name(), "its node is called %s, which no host of the mesh can be: no agent may speak for it; rename the node, or leave out --consul-node-is-host", sanitize(x.node.Node))
	}
	return w.intern(name)
}
