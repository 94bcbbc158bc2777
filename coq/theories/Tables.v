(** * Tables of calls

    Calls that are alike lead to the same answers and the same visits.  So the machine of compiled code
    may leave out calls that failed before, other ways to match a call that has nothing left to bind, and
    such a call once it is part of the match: what is lost are answers that repeat earlier ones. *)

From Coq Require Import List Bool PeanoNat Lia.
Import ListNotations.
From PyPM Require Import Names Values Terms Guards Patterns Declarative Stores Machine BigStep Ordered
  Tabling Visits Compile CodeVisits Repetitions AfterCalls.

Section Tables.
Context {Δ : Domain} {T : Type} {Σ : Structure T}.

(** ** Calls of compiled code *)

(** A call: the store, the enclosing recursive patterns and the names with which its body is entered, the
    code of its body, and the subject. *)
Record call : Type := Call {
  f_store : store T;
  f_recursion : list (list name * code);
  f_names : locs;
  f_code : code;
  f_subject : T
}.

Definition enters (R : list (list name * code)) (ρ : locs) (i : instr) : option (frame * code) :=
  match i with
  | IMu xs b ys => Some (((xs, b) :: R, callenv xs ys ρ), b)
  | ICall i ys =>
      match skipn i R with
      | (xs, b) :: R' => Some (((xs, b) :: R', callenv xs ys ρ), b)
      | [] => None
      end
  | _ => None
  end.

(** [calls x f y]: what [x] does next is to call [f], and then it goes on as [y]. *)
Inductive calls : vm_config -> call -> vm_config -> Prop :=
| Calls σ t K R ρ F i c R' ρ' b :
    enters R ρ i = Some ((R', ρ'), b) ->
    calls (VM σ (t :: K) ((R, ρ) :: F) (i :: c)) (Call σ R' ρ' b t) (VM σ K ((R, ρ) :: F) c).

(** The body of a call, with nothing after it. *)
Definition alone (f : call) : vm_config :=
  VM (f_store f) [f_subject f] [(f_recursion f, f_names f)] (f_code f).

Definition with_store (τ : store T) (y : vm_config) : vm_config :=
  VM τ (vm_subjects y) (vm_frames y) (vm_code y).

(** The same code at the same subject, with names that are alike. *)
Definition like (f g : call) : Prop :=
  f_recursion f = f_recursion g /\ f_code f = f_code g /\ f_subject f = f_subject g /\
  alike (f_store f) (f_names f) (f_store g) (f_names g).

(** What a search may call: its names stand at allocated locations, and its code is that of patterns. *)
Definition callable (f : call) : Prop :=
  located (f_store f) (f_names f) /\
  exists R p, f_recursion f = compile_rec R /\ f_code f = compile p.

Definition all_bound (f : call) : Prop := closed (f_store f) (f_names f).

(** ** A search for some of the answers *)

(** It may leave out alternatives, and go past a call with nothing left to bind if a call that is like it
    has an answer. *)
Inductive deriving : list (code_alternative T) -> list (answer T) -> Prop :=
| D_failure : deriving [] []
| D_success σ K F v stk o : deriving stk o -> deriving ((VM σ K F [], v) :: stk) ((σ, v) :: o)
| D_step σ K F i c v stk o :
    deriving (code_visit (VM σ K F (i :: c)) v ++ stk) o ->
    deriving ((VM σ K F (i :: c), v) :: stk) o
| D_skip x stk o : deriving stk o -> deriving (x :: stk) o
| D_done x f g y v a o1 stk o :
    calls x g y -> callable f -> all_bound f -> like f g ->
    code_visiting [(alone f, [])] (a :: o1) ->
    deriving ((y, v) :: stk) o -> deriving ((x, v) :: stk) o.

(** ** The machine that tables calls *)

Inductive tabling : list call -> list (code_alternative T) -> list (answer T) -> Prop :=
| T_failure tb : tabling tb [] []
| T_success tb σ K F v stk o :
    tabling tb stk o -> tabling tb ((VM σ K F [], v) :: stk) ((σ, v) :: o)
| T_step tb σ K F i c v stk o :
    tabling tb (code_visit (VM σ K F (i :: c)) v ++ stk) o ->
    tabling tb ((VM σ K F (i :: c), v) :: stk) o
(* a call whose search ends without an answer is written down *)
| T_record tb f v stk o :
    callable f -> tabling tb [(alone f, v)] [] ->
    tabling (f :: tb) stk o -> tabling tb stk o
(* and one that is like it is not searched *)
| T_again tb x f g y v stk o :
    calls x g y -> In f tb -> like f g ->
    tabling tb stk o -> tabling tb ((x, v) :: stk) o
(* what comes after a call with nothing left to bind is searched after the first way to match it; the
   other ways can only repeat that, and all of them, or some, may be left out *)
| T_first tb x f y v τ w o1 a again stk o :
    calls x f y -> all_bound f ->
    tabling tb [(alone f, v)] ((τ, w) :: o1) ->
    tabling tb [(with_store τ y, w)] a -> deriving [(x, v)] again ->
    tabling tb stk o -> tabling tb ((x, v) :: stk) (a ++ again ++ o)
(* such a call is not searched again if it is like one of which the first match is part of this match *)
| T_done tb x f g y v τ w o1 stk o :
    calls x g y -> callable f -> all_bound f -> like f g ->
    code_visiting [(alone f, [])] ((τ, w) :: o1) -> incl w v ->
    tabling tb ((y, v) :: stk) o -> tabling tb ((x, v) :: stk) o.

Lemma alike_closed σ ρ σ' ρ' : closed σ ρ -> alike (T := T) σ ρ σ' ρ' -> closed σ' ρ'.
Proof.
  intros C [S V _] x l' E. specialize (V x). specialize (S x). unfold compose in V. rewrite E in V.
  destruct (ρ x) as [l |] eqn:Q.
  - rewrite <- V. now apply C with x.
  - destruct S as [S _]. now rewrite S in E.
Qed.

(** ** What code means *)

Definition good (x : code_alternative T) : Prop :=
  exists k, decodes (vm_code (fst x)) (vm_subjects (fst x)) (vm_frames (fst x)) k /\
    placed (vm_store (fst x)) k.

Definition since (n : nat) (x : code_alternative T) : Prop := n <= next (vm_store (fst x)).

Lemma means x k v o : decodes (vm_code x) (vm_subjects x) (vm_frames x) k ->
  code_visiting [(x, v)] o <-> visiting [((vm_store x, k), v)] o.
Proof.
  intros D. assert (H : Forall2 runs_with [(x, v)] [((vm_store x, k), v)]) by (repeat constructor; auto).
  split; intros V; [eapply code_visiting_machine | eapply visiting_code]; eauto.
Qed.

Lemma good_step σ K F i c v n :
  good (VM σ K F (i :: c), v) -> since n (VM σ K F (i :: c), v) ->
  Forall good (code_visit (VM σ K F (i :: c)) v) /\ Forall (since n) (code_visit (VM σ K F (i :: c)) v).
Proof.
  intros (k & D & O) N. simpl in D, O. unfold since in N. simpl in N.
  destruct (code_step i c K F k σ D) as [([R ρ] & F' & -> & -> & D') | (a & k' & E & _ & _ & _ & HR)].
  - split; (constructor; [| constructor]); [exists k; split; auto | exact N].
  - apply all_split_placed in O. rewrite E in O.
    assert (G : forall d, In d (do_action σ a k') -> placed (fst d) (snd d) /\ n <= next (fst d)).
    { intros d I. destruct (do_action_placed σ a k' d O I) as [O' N']. split; auto. lia. }
    unfold code_visit. clear - HR G.
    induction HR as [| x d xs ds [Es Dx] _ IH]; simpl; [split; constructor |].
    destruct IH as [IH1 IH2]; [intros; apply G; now right |]. destruct (G d) as [O N]; [now left |].
    split; constructor; auto; unfold since, good; simpl; rewrite Es; eauto.
Qed.

(** At a call, the code of its body is that of a pattern. *)
Lemma call_means x f y v : calls x f y -> good (x, v) ->
  vm_store x = f_store f /\ vm_store y = f_store f /\ callable f /\
  exists k, decodes (vm_code y) (vm_subjects y) (vm_frames y) k /\ placed (f_store f) k /\
    forall R p, f_recursion f = compile_rec R -> f_code f = compile p ->
      forall v o, code_visiting [(x, v)] o <->
        visiting [((f_store f, AMatch R (f_names f) p (f_subject f) :: k), v)] o.
Proof.
  intros C (k0 & D & O). destruct C as [σ t K R ρ F j c R' ρ' b E]. simpl in *.
  destruct (code_step j c (t :: K) ((R, ρ) :: F) k0 σ D)
    as [(? & ? & -> & _) | (a & k' & Es & Sp & _ & D' & _)]; [discriminate |].
  apply all_split_placed in O. rewrite Es in O. destruct O as [U S].
  inversion S as [| ? ? Sa Sk]; subst.
  assert (Q : exists R1 p1, R' = compile_rec R1 /\ b = compile p1 /\
    decodes c K ((R, ρ) :: F) k' /\ forall x l, ρ' x = Some l -> allocated σ l).
  { inversion D' as [| R0 ? p ? c0 ? ? ? Dc Ec | | | | |]; subst; try discriminate E.
    assert (A : forall xs ys x l, callenv xs ys ρ x = Some l -> allocated σ l).
    { intros xs ys x l B. apply callenv_range in B as (z & B). eauto. }
    destruct p; try discriminate Sp; injection Ec as <- Ec; try discriminate E; subst; simpl in E.
    - injection E as <- <- <-. exists (Def xs ins outs small p :: R0), p. eauto.
    - unfold compile_rec in E. rewrite skipn_map in E.
      destruct (skipn i R0) as [| d R1]; [discriminate |]. injection E as <- <- <-.
      exists (d :: R1), (d_body d). eauto. }
  destruct Q as (R1 & p1 & ER & Eb & Dc & A). repeat split; auto.
  - eauto.
  - exists k'. split; [exact Dc |]. split; [now split |]. intros R2 p2 -> -> w o.
    assert (Dx : decodes (compile p2 ++ IRet :: c) (t :: K) ((compile_rec R2, ρ') :: (R, ρ) :: F)
                   (AMatch R2 ρ' p2 t :: k')) by now apply D_match, D_ret.
    rewrite <- (means (VM σ (t :: K) ((compile_rec R2, ρ') :: (R, ρ) :: F) (compile p2 ++ IRet :: c))
                  _ w o Dx).
    assert (V : code_visit (VM σ (t :: K) ((R, ρ) :: F) (j :: c)) w =
      [(VM σ (t :: K) ((compile_rec R2, ρ') :: (R, ρ) :: F) (compile p2 ++ IRet :: c), w)]).
    { destruct j; try discriminate E; simpl in E.
      - now injection E as <- <- <-.
      - unfold code_visit. simpl. destruct (skipn i R) as [| [xs b] R3]; [discriminate |].
        now injection E as <- <- <-. }
    split; intros H.
    + inversion H; subst. now rewrite V in *.
    + apply C_step. now rewrite V.
Qed.

Lemma good_after x f y v τ w n :
  calls x f y -> good (x, v) -> unused τ -> n <= next τ -> next (f_store f) <= next τ ->
  good (with_store τ y, w) /\ since n (with_store τ y, w).
Proof.
  intros C G U N L. destruct (call_means _ _ _ _ C G) as (_ & _ & _ & k & D & [_ S] & _).
  split; [| exact N]. exists k. split; [exact D |]. split; auto. eapply stands_later; eauto.
Qed.

Lemma good_past x f y v w n :
  calls x f y -> good (x, v) -> since n (x, v) -> good (y, w) /\ since n (y, w).
Proof.
  intros C G N. destruct (call_means _ _ _ _ C G) as (Ex & Ey & _ & k & D & O & _).
  split; [exists k; split; auto |]; unfold since in *; simpl in *; congruence.
Qed.

Lemma good_alone f v : callable f -> good (alone f, v).
Proof.
  intros ([U L] & R & p & ER & Ec). exists [AMatch R (f_names f) p (f_subject f)]. simpl. split.
  - rewrite ER, Ec, <- (app_nil_r (compile p)). apply D_match, D_nil.
  - split; auto.
Qed.

Lemma alone_means f R p v o : f_recursion f = compile_rec R -> f_code f = compile p ->
  code_visiting [(alone f, v)] o <->
  visiting [((f_store f, [AMatch R (f_names f) p (f_subject f)]), v)] o.
Proof.
  intros ER Ec. apply (means (alone f)). simpl.
  rewrite ER, Ec, <- (app_nil_r (compile p)). apply D_match, D_nil.
Qed.

Definition known_store (n : nat) (b : answer T) : Prop := unused (fst b) /\ n <= next (fst b).

(** Of calls that are like one that has an answer. *)
Lemma like_means x f g y v w a o :
  calls x g y -> good (x, v) -> callable f -> all_bound f -> like f g ->
  code_visiting [(alone f, [])] ((a, w) :: o) ->
  exists (R : recursion) (p : pattern) (k : list (action T)) (b : answer T) (o' : list (answer T)),
    located (f_store g) (f_names g) /\ closed (f_store g) (f_names g) /\
    Forall (stands_in (f_store g)) k /\ snd b = w /\
    visiting [((f_store g, [AMatch R (f_names g) p (f_subject g)]), [])] (b :: o') /\
    (forall o, code_visiting [(y, v)] o <-> visiting [((f_store g, k), v)] o) /\
    (forall o, code_visiting [(x, v)] o <->
       visiting [((f_store g, AMatch R (f_names g) p (f_subject g) :: k), v)] o).
Proof.
  intros C G [Lf (R & p & ER & Ec)] B (Er & Eb & Es & A) H.
  destruct (call_means _ _ _ _ C G) as (_ & Ey & [Lg _] & k & D & [_ K] & M).
  apply (alone_means f R p) in H; auto. rewrite Es in H.
  destruct (like_searched R p _ _ _ _ _ _ Lf Lg A H) as ([| b o'] & H' & E); [discriminate |].
  injection E as E _. exists R, p, k, b, o'. split; [exact Lg |].
  split; [eapply alike_closed; eauto |]. split; [exact K |]. split; [auto |]. split; [exact H' |]. split.
  - intros q. rewrite <- Ey. now apply (means y k v q).
  - intros q. apply M; congruence.
Qed.

(** ** What is left out repeats what is there *)

Lemma deriving_known st o : deriving st o -> forall n, Forall good st -> Forall (since n) st ->
  Forall (known_store n) o.
Proof.
  induction 1 as [| σ K F v stk o _ IH | σ K F i c v stk o _ IH | x stk o _ IH
    | x f g y v b o1 stk o C Cf B L Hf _ IH]; intros n G N;
    try (inversion G as [| ? ? Gx G']; inversion N as [| ? ? Nx N']; subst); auto.
  - constructor; auto. destruct Gx as (k & _ & U & _). now split.
  - destruct (good_step _ _ _ _ _ _ n Gx Nx) as [G1 N1]. apply IH; apply Forall_app; auto.
  - destruct (good_past _ _ _ _ v n C Gx Nx). apply IH; constructor; auto.
Qed.

Lemma deriving_repeats st o : deriving st o -> forall r n, Forall good st -> Forall (since n) st ->
  code_visiting st r -> forall c, In c o -> exists a, In a r /\ same_known n a c.
Proof.
  induction 1 as [| σ K F v stk o _ IH | σ K F i c v stk o _ IH | x stk o _ IH
    | x f g y v [τ w] o1 stk o C Cf B L Hf _ IH]; intros r n G N H d I;
    try (inversion G as [| ? ? Gx G']; inversion N as [| ? ? Nx N']; subst).
  - destruct I.
  - inversion H as [| ? ? ? ? ? r' H' |]; subst. destruct I as [<- | I].
    + exists (σ, v). split; [now left | now intros x].
    + destruct (IH r' n G' N' H' d I) as (a & Ia & E). exists a. split; [now right | auto].
  - inversion H; subst. destruct (good_step _ _ _ _ _ _ n Gx Nx) as [G1 N1].
    apply (IH r n); auto; apply Forall_app; auto.
  - destruct (code_visiting_split _ _ H [x] stk eq_refl) as (a & b & _ & Y & ->).
    destruct (IH b n G' N' Y d I) as (q & Iq & E). exists q. split; auto. apply in_or_app. auto.
  - destruct (code_visiting_split _ _ H [_] stk eq_refl) as (r1 & r2 & X & Y & ->).
    destruct (like_means _ _ _ _ _ _ _ _ C Gx Cf B L Hf)
      as (R & p & k & b & o' & Lg & Cg & K & _ & Hb & My & Mx).
    apply Mx in X. destruct (call_means _ _ _ _ C Gx) as (Ex & _).
    assert (Ng : n <= next (f_store g)) by (unfold since in Nx; simpl in Nx; congruence).
    destruct (without_closed _ _ _ _ _ _ _ _ _ _ n Ng Cg Lg K Hb X) as (z & Hz & Cz).
    destruct (good_past _ _ _ _ v n C Gx Nx) as [Gy Ny].
    apply My in Hz.
    destruct (IH (z ++ r2) n ltac:(now constructor) ltac:(now constructor)
                (code_visiting_app _ _ Hz _ _ Y) d I) as (a & Ia & Ea).
    apply in_app_or in Ia as [Ia | Ia].
    + destruct (Cz a Ia) as (q & Iq & Eq). exists q. split; [apply in_or_app; auto |].
      now apply same_known_trans with a.
    + exists a. split; auto. apply in_or_app. auto.
Qed.

(** ** The theorem *)

Definition failed (f : call) : Prop := callable f /\ code_visiting [(alone f, [])] [].

Lemma failed_fails x f g y v : calls x g y -> good (x, v) -> failed f -> like f g ->
  code_visiting [(x, v)] [].
Proof.
  intros C G [[Lf (R & p & ER & Ec)] H] (Er & Eb & Es & A).
  destruct (call_means _ _ _ _ C G) as (_ & _ & [Lg _] & k & _ & _ & M).
  apply (alone_means f R p) in H; auto. rewrite Es in H.
  destruct (like_searched R p _ _ _ _ _ _ Lf Lg A H) as ([| b o'] & H' & E); [| discriminate].
  apply (M R p); try congruence. now apply (visiting_then k v _ _ H' []).
Qed.

Lemma same_visits_app (u v v' : list T) : same_visits v v' -> same_visits (u ++ v) (u ++ v').
Proof. intros V t. rewrite !in_app_iff. now rewrite (V t). Qed.

Theorem tabling_shorter tb st o : tabling tb st o -> Forall failed tb -> Forall good st ->
  exists r, code_visiting st r /\ forall n, Forall (since n) st ->
    (forall S, shorter (same_known n) S r o) /\ Forall (known_store n) o.
Proof.
  induction 1 as [tb | tb σ K F v stk o _ IH | tb σ K F i c v stk o _ IH
    | tb f v stk o Cf _ IHf _ IH | tb x f g y v stk o C I L _ IH
    | tb x f y v τ w o1 a again stk o C B _ IH1 _ IHa D _ IH
    | tb x f g y v τ w o1 stk o C Cf B L Hf W _ IH]; intros Tb G.
  - exists []. split; [constructor |]. intros n _. split; constructor.
  - inversion G as [| ? ? Gx G']; subst.
    destruct (IH Tb G') as (r & H & S). exists ((σ, v) :: r). split; [now constructor |].
    intros n N. inversion N as [| ? ? Nx N']; subst. destruct (S n N') as [S' Kn]. split.
    + intros S1. constructor; auto; now intros x.
    + constructor; auto. destruct Gx as (k & _ & U & _). now split.
  - inversion G as [| ? ? Gx G']; subst.
    assert (G1 := proj1 (good_step _ _ _ _ _ _ 0 Gx (Nat.le_0_l _))).
    destruct (IH Tb) as (r & H & S); [apply Forall_app; auto |]. exists r. split; [now constructor |].
    intros n N. inversion N as [| ? ? Nx N']; subst.
    destruct (good_step _ _ _ _ _ _ n Gx Nx). apply S. apply Forall_app. auto.
  - apply IH; auto. constructor; auto. split; auto.
    destruct (IHf Tb) as (r & H & S); [constructor; auto using good_alone |].
    destruct (S 0) as [S0 _]; [constructor; auto; apply Nat.le_0_l |].
    rewrite (shorter_none _ _ (S0 [])) in H. destruct Cf as [Lf (R & p & ER & Ec)].
    apply (alone_means f R p) in H; auto. apply (alone_means f R p); auto.
    destruct (visiting_from _ _ _ _ H) as (o' & H' & E).
    symmetry in E. apply map_eq_nil in E. now subst.
  - inversion G as [| ? ? Gx G']; subst.
    destruct (IH Tb G') as (r & H & S). exists r. split.
    + apply (code_visiting_app [(x, v)] []); auto. rewrite Forall_forall in Tb.
      eapply failed_fails; eauto.
    + intros n N. inversion N; subst. auto.
  - inversion G as [| ? ? Gx G']; subst.
    destruct (call_means _ _ _ _ C Gx) as (Ex & _ & [Lf (R & p & ER & Ec)] & k & Dk & [_ Sk] & M).
    specialize (M R p ER Ec).
    destruct (IH1 Tb) as (r0 & H0 & S0); [constructor; auto; apply good_alone; split; eauto |].
    destruct (S0 (next (f_store f))) as [S1 K1]; [constructor; auto; apply Nat.le_refl |].
    destruct (shorter_first _ _ _ _ (S1 [])) as ([τ' w'] & r0' & -> & E0 & V0). simpl in V0.
    apply (alone_means f R p) in H0; auto. destruct (visiting_from _ _ _ _ H0) as (o' & H' & E).
    destruct o' as [| b o']; [discriminate |]. injection E as -> -> ->.
    inversion K1 as [| ? ? [Uτ Nτ] _]; subst. simpl in Uτ, Nτ.
    assert (Bb : beyond (f_store f) (fst b)) by (eapply closed_beyond; eauto; now left).
    assert (Bτ : beyond (f_store f) τ).
    { split; auto. intros l A. rewrite <- (beyond_old _ _ Bb l A). symmetry. apply E0. exact A. }
    destruct (good_after x f y v τ w 0 C Gx Uτ (Nat.le_0_l _) Nτ) as [Gy _].
    destruct (IHa Tb) as (r1 & H1 & S2); [constructor; auto |].
    destruct (IH Tb G') as (r2 & H2 & S3).
    apply (means (with_store τ y) k) in H1; auto. simpl in H1.
    assert (N0 : since (next (f_store f)) (x, v)) by (unfold since; simpl; rewrite Ex; auto).
    assert (V1 : same_visits w (snd b ++ v)) by (intros t; now rewrite (V0 t)).
    destruct (after_closed same_visits _ _ R p _ k v b o' τ w r1 (next (f_store f))
      same_visits_app (Nat.le_refl _) B Lf Sk H' Bτ V1 H1) as (r' & rest & Hr & Fr & Cr).
    apply M in Hr.
    exists ((r' ++ rest) ++ r2). split; [apply (code_visiting_app [(x, v)]); auto |].
    intros n N. inversion N as [| ? ? Nx N']; subst.
    assert (Nf : n <= next (f_store f)) by (unfold since in Nx; simpl in Nx; congruence).
    assert (Less : forall a b : answer T, same_known (next (f_store f)) a b -> same_known n a b).
    { intros a' b'. now apply same_known_less. }
    destruct (S2 n) as [Sa Ka]; [constructor; auto; unfold since; simpl; lia |].
    destruct (S3 n N') as [So Ko]. split.
    + intros S. rewrite <- app_assoc. apply shorter_others; auto.
      * apply (shorter_alike n S r1 a (Sa S)).
        -- intros s Is. exists s. split; auto. now intros l.
        -- exact (same_answers_less _ _ _ _ Nf Fr).
      * intros c [I | I].
        -- destruct (Cr c I) as (s & Is & Es). exists s. split; auto. apply in_or_app. auto.
        -- destruct (deriving_repeats _ _ D _ n ltac:(now constructor) ltac:(now constructor) Hr c I)
             as (d & Id & Ed).
           apply in_app_or in Id as [Id | Id].
           ++ exists d. split; auto. apply in_or_app. auto.
           ++ destruct (Cr d Id) as (s & Is & Es). exists s. split; [apply in_or_app; auto |].
              apply same_known_trans with d; auto.
    + apply Forall_app. split; auto. apply Forall_app. split; auto.
      apply (deriving_known _ _ D n); constructor; auto.
  - inversion G as [| ? ? Gx G']; subst.
    destruct (like_means _ _ _ _ _ _ _ _ C Gx Cf B L Hf)
      as (R & p & k & b & o' & Lg & Cg & Sk & Eb & Hb & My & Mx).
    destruct (call_means _ _ _ _ C Gx) as (Ex & _).
    destruct (good_past _ _ _ _ v 0 C Gx (Nat.le_0_l _)) as [Gy _].
    destruct (IH Tb) as (r & H & S); [constructor; auto |].
    destruct (code_visiting_split _ _ H [(y, v)] stk eq_refl) as (r1 & r2 & H1 & H2 & ->).
    apply My in H1.
    assert (V1 : same_visits v (snd b ++ v)).
    { intros t. rewrite in_app_iff, Eb. split; auto. intros [I | I]; auto. }
    destruct (after_closed same_visits _ _ R p _ k v b o' _ v r1 (next (f_store g))
      same_visits_app (Nat.le_refl _) Cg Lg Sk Hb (beyond_refl _ (proj1 Lg)) V1 H1)
      as (r' & rest & Hr & Fr & Cr).
    apply Mx in Hr.
    exists ((r' ++ rest) ++ r2). split; [apply (code_visiting_app [(x, v)]); auto |].
    intros n N. inversion N as [| ? ? Nx N']; subst.
    assert (Ng : n <= next (f_store g)) by (unfold since in Nx; simpl in Nx; congruence).
    destruct (good_past _ _ _ _ v n C Gx Nx) as [_ Ny].
    destruct (S n) as [So Ko]; [constructor; auto |]. split; auto.
    intros S'. rewrite <- app_assoc.
    apply (shorter_inserted n S' (r' ++ r2) o); auto.
    + apply (shorter_alike n S' (r1 ++ r2) o (So S')).
      * intros s Is. exists s. split; auto. now intros l.
      * apply Forall2_app; [exact (same_answers_less _ _ _ _ Ng Fr) | apply same_answers_refl].
    + intros c I. destruct (Cr c I) as (s & Is & Es). exists s.
      split; [apply in_or_app; auto | exact (same_known_less _ _ _ _ Ng Es)].
Qed.

Corollary tabled_search p t o :
  tabling [] (code_search p t) o ->
  exists r, visiting (search p t) r /\ shorter same_bindings [] r o.
Proof.
  intros H. destruct (tabling_shorter _ _ _ H) as (r & V & S).
  - constructor.
  - constructor; [| constructor]. exists [AMatch [] ρ0 p t]. split.
    + simpl. rewrite <- (app_nil_r (compile p)). apply (D_match []), D_nil.
    + split; [now intros n _ |]. constructor; [| constructor]. now intros x l [= <-].
  - exists r. split; [now apply code_visits |]. destruct (S 0) as [S0 _].
    + constructor; [apply Nat.le_0_l | constructor].
    + eapply shorter_weaker; [| apply S0]. intros a b E x. now apply E.
Qed.
End Tables.
