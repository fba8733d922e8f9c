package webhook

import (
	"strings"

	networking "istio.io/api/networking/v1alpha3"
)

// clientTLS judges how a proxy speaks TLS to what is upstream.
func (c cursor) clientTLS(namespace string, t *networking.ClientTLSSettings) {
	if t == nil {
		return
	}
	simple := t.Mode == networking.ClientTLSSettings_SIMPLE
	mutual := t.Mode == networking.ClientTLSSettings_MUTUAL
	if name, ok := strings.CutPrefix(t.CredentialName, "configmap://"); ok {
		c.at("credentialName").configMap(namespace, name)
	}
	if t.GetInsecureSkipVerify().GetValue() && (simple || mutual) {
		const why = "with insecureSkipVerify nothing is verified, so %s has no meaning; remove one of the two"
		if t.CaCertificates != "" {
			c.at("caCertificates").wrong(why, "caCertificates")
		}
		if len(t.SubjectAltNames) > 0 {
			c.at("subjectAltNames").wrong(why, "subjectAltNames")
		}
		if simple && t.CredentialName != "" {
			c.at("credentialName").wrong(why, "credentialName")
		}
	}
	if !simple && !mutual {
		return
	}
	if t.CredentialName != "" {
		for _, f := range []struct{ name, value string }{
			{"clientCertificate", t.ClientCertificate},
			{"privateKey", t.PrivateKey},
			{"caCertificates", t.CaCertificates},
			{"caCrl", t.CaCrl},
		} {
			if f.value != "" {
				c.at(f.name).wrong("%s comes with credentialName already; remove one of the two", f.name)
			}
		}
		return
	}
	if !mutual {
		return
	}
	if t.ClientCertificate == "" {
		c.wrong("mode MUTUAL needs a certificate of our own; write clientCertificate and privateKey, or credentialName")
	}
	if t.PrivateKey == "" {
		c.wrong("mode MUTUAL needs the key of our certificate; write privateKey, or credentialName")
	}
}

// configMap judges what follows "configmap://".
func (c cursor) configMap(namespace, ref string) {
	parts := strings.Split(ref, "/")
	switch {
	case len(parts) < 2 || parts[0] == "" || parts[1] == "":
		c.wrong("the reference lacks a part; write configmap://%s/name", namespace)
	case parts[0] != namespace:
		c.wrong("the reference leads to namespace %q; it must stay in %q", parts[0], namespace)
	}
}
