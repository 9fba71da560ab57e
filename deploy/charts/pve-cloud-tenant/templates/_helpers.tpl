{{- define "pve-cloud-tenant.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: csi-node
{{- end }}

{{- define "pve-cloud-tenant.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/part-of: pve-cloud
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "pve-cloud-tenant.image" -}}
{{- $image := .Values.images.csiNode }}
{{- $name := printf "%s/%s" (default .Values.images.registry $image.registry) $image.repository }}
{{- if $image.digest }}
{{- printf "%s@%s" $name $image.digest }}
{{- else }}
{{- printf "%s:%s" $name (coalesce $image.tag .Values.images.tag .Chart.AppVersion) }}
{{- end }}
{{- end }}

{{- /* Folder of the plugin's socket, on the Node and in the container alike. */}}
{{- define "pve-cloud-tenant.pluginDir" -}}
{{ .Values.kubeletDir }}/plugins/{{ .Values.driverName }}
{{- end }}

{{- /* An account that is impersonated from the management cluster, and its rights in the whole cluster: of (list $ name rules). */}}
{{- define "pve-cloud-tenant.account" -}}
{{- $ := index . 0 }}
{{- $name := index . 1 }}
---
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ $name }}
  namespace: {{ $.Release.Namespace }}
  labels:
    {{- include "pve-cloud-tenant.labels" $ | nindent 4 }}
automountServiceAccountToken: false
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: {{ $name }}
  labels:
    {{- include "pve-cloud-tenant.labels" $ | nindent 4 }}
rules:
  {{- index . 2 | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ $name }}
  labels:
    {{- include "pve-cloud-tenant.labels" $ | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ $name }}
subjects:
  - kind: ServiceAccount
    name: {{ $name }}
    namespace: {{ $.Release.Namespace }}
{{- end }}

{{- /* Its rights in one namespace: of (list $ name namespace rules). */}}
{{- define "pve-cloud-tenant.role" -}}
{{- $ := index . 0 }}
{{- $name := index . 1 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ $name }}
  namespace: {{ index . 2 }}
  labels:
    {{- include "pve-cloud-tenant.labels" $ | nindent 4 }}
rules:
  {{- index . 3 | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ $name }}
  namespace: {{ index . 2 }}
  labels:
    {{- include "pve-cloud-tenant.labels" $ | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ $name }}
subjects:
  - kind: ServiceAccount
    name: {{ $name }}
    namespace: {{ $.Release.Namespace }}
{{- end }}
